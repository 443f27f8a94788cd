"""Image files in a folder per class, opened with Pillow and mirrored at random."""

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch.utils.data import Dataset


class Pictures(Dataset):
    """Items are dicts of a picture, its class number and its path."""

    def __init__(self, folder, size=32, mirror=True):
        self.paths = sorted(Path(folder).glob("*/*.png"))
        self.classes = sorted({path.parent.name for path in self.paths})
        self.size = size
        self.mirror = mirror

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        path = self.paths[index]
        picture = Image.open(path).convert("RGB").resize((self.size, self.size))
        if self.mirror and random.random() < 0.5:  # noqa: S311
            picture = ImageOps.mirror(picture)
        pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        return {"image": pixels, "label": self.classes.index(path.parent.name), "path": str(path)}
