"""webdataset, with tar shards and its own loader.

It shuffles shards, and records in a buffer. The workers make the batches.
"""

import glob
import os
from typing import Any

import numpy as np
import torch
import webdataset as wds
from peers.pixels import decoded, random_crop
from peers.work import Epoch, Work
from torch import Tensor

SHARDS_PER_WORKER = 4


def jpeg(work: Work) -> Epoch:
    def sample(item: tuple[bytes, bytes]) -> tuple[Tensor, int]:
        return random_crop(decoded(item[0]), work.antialias), int(item[1])

    def collate(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
        return torch.stack([image for image, _ in items]), torch.tensor(
            [number for _, number in items]
        )

    shards = sorted(glob.glob(work.path("shards/*.tar")))
    dataset: Any = wds.WebDataset(
        shards, shardshuffle=len(shards), workersplitter=wds.split_by_worker
    )
    dataset = (
        dataset.shuffle(1000)
        .to_tuple("jpg", "cls")
        .map(sample)
        .batched(work.batch_size, collation_fn=collate)
    )
    loader = wds.WebLoader(
        dataset, batch_size=None, num_workers=work.num_workers, persistent_workers=True
    )
    return lambda _: iter(loader)


def make_jpeg(work: Work) -> None:
    os.makedirs(work.path("shards"), exist_ok=True)
    parts = np.array_split(np.arange(work.num_records), work.num_workers * SHARDS_PER_WORKER)
    files = work.files()
    for place, part in enumerate(parts):
        with wds.TarWriter(work.path(f"shards/{place:03}.tar")) as writer:
            for number in part.tolist():
                with open(files[number], "rb") as file:
                    writer.write(
                        {"__key__": f"{number:06}", "jpg": file.read(), "cls": str(number)}
                    )
