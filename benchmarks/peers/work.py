"""The task of a contestant, and the random window that hand-written datasets cut."""

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

# Takes the number of an epoch, yields its batches: images [B, C, H, W] and record numbers [B].
Epoch = Callable[[int], Iterator[tuple[Tensor, Tensor]]]


@dataclass(frozen=True)
class Work:
    """A workload as a contestant gets it.

    Attributes:
        workload: A, B, C, D, E, M or R.
        folder: The folder of the data set (see `peers.made`), with every contestant's own format.
        num_records: Records of an epoch.
        batch_size: Records of a batch.
        num_workers: Processes or threads, by default as many as there are cores.
        antialias: Whether shrinking averages.
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
        """Return the paths of the image files. A record's number is its place in this list."""
        return [str(path) for path in sorted(Path(self.folder, "files").glob("*/*"))]

    def masks(self) -> list[str]:
        """Return the paths of M's label maps, in the order of ``files``."""
        return [str(path) for path in sorted(Path(self.folder, "masks").glob("*"))]

    def ragged(self) -> list[np.ndarray]:
        """Return R's records: arrays of 1 to 1,000 float32."""
        ends = np.cumsum(np.load(self.path("lengths.npy")))
        return np.split(np.load(self.path("values.npy")), ends[:-1])


def random_window(height: int, width: int, rng: Any = random) -> tuple[int, int, int, int]:
    """Draw a window as torchvision's RandomResizedCrop does: ten tries, then the middle.

    ``rng`` is the module ``random`` or one of its generators.

    Returns:
        Top, left, height and width.
    """
    for _ in range(10):
        area = height * width * rng.uniform(*SCALE)
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    w, h = min(width, round(height * RATIO[1])), min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w
