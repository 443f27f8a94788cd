"""What a contestant is given, and the random window that hand-written datasets cut."""

import math
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

SIZE = 224  # pixels of a result's side in A, B and C
SCALE, RATIO, FLIP = (0.08, 1.0), (3 / 4, 4 / 3), 0.5  # torchvision's defaults
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of CIFAR-10, for E
PADDING = 4

Epoch = Callable[
    [int], Iterator[tuple[Tensor, Tensor]]
]  # number -> batches: (images [B, C, H, W], record numbers [B])


@dataclass(frozen=True)
class Work:
    """One workload (A, B, C, D, E, M or R) as one contestant meets it. ``folder`` holds its data, in every contestant's own format.

    ``num_workers``: processes or threads, as many as there are cores. ``antialias``: whether shrinking averages.
    """

    workload: str
    folder: str
    num_records: int
    batch_size: int
    num_workers: int
    antialias: bool

    def path(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def files(self) -> list[str]:
        """The workload's image files; a record's number is its place in this list."""
        return [str(path) for path in sorted(Path(self.folder, "files").glob("*/*"))]

    def masks(self) -> list[str]:
        """M's label maps, in the order of ``files``."""
        return [str(path) for path in sorted(Path(self.folder, "masks").glob("*"))]

    def ragged(self) -> list[np.ndarray]:
        """R's records: float32 of 1 to 1,000 values."""
        ends = np.cumsum(np.load(self.path("lengths.npy")))
        return np.split(np.load(self.path("values.npy")), ends[:-1])


def random_window(height: int, width: int, rng: Any = random) -> tuple[int, int, int, int]:
    """(top, left, height, width), as torchvision's RandomResizedCrop draws it: ten tries, then the middle.

    ``rng`` is the module ``random`` or one of its generators.
    """
    for _ in range(10):
        area = height * width * rng.uniform(*SCALE)
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w
