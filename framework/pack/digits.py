"""The handwritten digits that ship inside scikit-learn: 1,797 real 8x8 images, no download."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, final

import numpy as np

from framework.contracts import Manifest, Records
from framework.errors import ConfigError
from framework.pack.run import image_fields
from framework.pack.scale import scaled

VAL_EVERY = 5  # every fifth digit is for validation: 360 of 1,797
SPLITS = ("train", "val")


@final
class DigitsInput:
    """Fields ``image`` uint8 [1, 8, 8] (or ``size``) and ``label``; in the order of the labels, as a folder of classes would be."""

    def __init__(self, split: str, size: Sequence[int] | None) -> None:
        if split not in SPLITS:
            raise ConfigError(116, f"input.split = {split}", "not a split", "choose train or val")
        self.split, self.size = split, size

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        from sklearn.datasets import load_digits  # noqa: PLC0415  # a second to import, wanted only here

        data: Any = load_digits()
        images = np.round(data.images * (255 / 16)).astype(np.uint8)  # stored as 0..16
        labels = data.target.astype(np.int64)
        is_val = np.arange(len(labels)) % VAL_EVERY == 0
        chosen = np.flatnonzero(is_val if self.split == "val" else ~is_val)
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
        return scaled(images[chosen], self.size), labels[chosen]

    @cached_property
    def manifest(self) -> Manifest:
        images, labels = self.arrays
        fields = image_fields(*images.shape[1:], raw=True)
        return Manifest(len(labels), fields, [str(n) for n in range(10)], source=f"scikit-learn digits, {self.split}")

    def read(self, start: int, stop: int) -> Records:
        images, labels = self.arrays
        return {"image": images[start:stop], "label": labels[start:stop]}
