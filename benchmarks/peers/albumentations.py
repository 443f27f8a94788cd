"""Albumentations in a DataLoader, for workload M.

An image, its mask and its boxes go through the same random resized crop and flip.
"""

from typing import Any

import albumentations
import cv2
import numpy as np
import torch
from peers.pixels import decoded
from peers.work import FLIP, RATIO, SCALE, SIZE, Epoch, Work
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Marked(Dataset[Any]):
    def __init__(self, work: Work) -> None:
        self.files, self.masks = work.files(), work.masks()
        self.boxes = np.load(work.path("boxes.npy"))
        crop = albumentations.RandomResizedCrop((SIZE, SIZE), scale=SCALE, ratio=RATIO)
        boxes: Any = albumentations.BboxParams("pascal_voc", label_fields=["places"])
        flip = albumentations.HorizontalFlip(p=FLIP)
        self.change = albumentations.Compose([crop, flip], bbox_params=boxes)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor, Tensor, int]:
        with open(self.files[number], "rb") as file:
            image = decoded(file.read())
        mask: Any = cv2.imread(self.masks[number], cv2.IMREAD_GRAYSCALE)
        boxes = self.boxes[number]
        made = self.change(image=image, mask=mask, bboxes=boxes, places=np.arange(len(boxes)))
        pixels = torch.from_numpy(made["image"]).permute(2, 0, 1)
        kept = torch.from_numpy(np.asarray(made["bboxes"], np.float32).reshape(-1, 4))
        return pixels, torch.from_numpy(made["mask"])[None], kept, number


def collated(items: list[Any]) -> tuple[Tensor, Tensor, Tensor, list[Tensor]]:
    images, masks, boxes, numbers = zip(*items, strict=True)
    return torch.stack(images), torch.tensor(numbers), torch.stack(masks), list(boxes)


def marked(work: Work) -> Epoch:
    made = DataLoader(
        Marked(work),
        work.batch_size,
        shuffle=True,
        num_workers=work.num_workers,
        persistent_workers=True,
        collate_fn=collated,
    )
    return lambda _: (batch[:2] for batch in made)
