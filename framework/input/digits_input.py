"""The 1,797 handwritten digits beside this file, which are scikit-learn's: real 8x8 images."""

from functools import cached_property
from pathlib import Path
from typing import final

import numpy as np

from framework.contracts.records import Chunk, Field, Manifest
from framework.errors import ConfigError

DIGITS = Path(__file__).with_name("digits.npz")  # digits.txt names its source and license
VAL_EVERY = 5  # every fifth digit is for validation: 360 of 1,797


@final
class DigitsInput:
    """Fields ``image`` uint8 [1, 8, 8] and ``label``, sorted by label, as a folder of classes is.

    Keys are the digits' numbers in scikit-learn's order.
    """

    def __init__(self, split: str) -> None:
        if split not in ("train", "val"):
            raise ConfigError(116, f"input.split = {split}", "not a split", "choose train or val")
        self.split = split

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Images, labels, and their numbers in scikit-learn's order."""
        with np.load(DIGITS) as data:
            images = np.round(data["image"] * (255 / 16)).astype(np.uint8)  # stored as 0..16
            labels = data["label"].astype(np.int64)
        is_val = np.arange(len(labels)) % VAL_EVERY == 0
        chosen = np.flatnonzero(is_val if self.split == "val" else ~is_val)
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
        return images[chosen][:, None], labels[chosen], chosen

    @cached_property
    def manifest(self) -> Manifest:
        images, labels, _ = self.arrays
        fields = {"image": Field("uint8", images.shape[1:]), "label": Field("int64", ())}
        source = f"scikit-learn digits, {self.split}"
        return Manifest(len(labels), fields, list("0123456789"), source=source)

    def read(self, start: int, stop: int) -> Chunk:
        images, labels, numbers = self.arrays
        keys = [str(number) for number in numbers[start:stop]]
        return Chunk({"image": images[start:stop], "label": labels[start:stop]}, keys)

    def name(self, index: int) -> str:
        return f"scikit-learn digit {self.arrays[2][index]}"
