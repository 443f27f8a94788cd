"""A folder of images, a subfolder per class."""

from collections.abc import Sequence
from functools import cached_property
from typing import final

import numpy as np
import torch

from framework.contracts import Manifest, Records
from framework.data.decode import BadImage, cut, decode
from framework.data.folder import FolderStore
from framework.errors import ConfigError, DataError
from framework.pack.run import image_fields
from framework.transform.resize import Resize


@final
class FolderInput:
    """Fields ``image`` and ``label`` from the images under ``path``; every image is decoded once to be sure of it.

    ``encode``: keep (the file's own bytes) or raw (pixels, uint8 [C, H, W], all of one size). ``size``: (height, width) to scale
    raw images to; None: they must have one already. ``channels``: 1 or 3; None: as in the first image.
    """

    def __init__(self, path: str, encode: str, size: Sequence[int] | None, channels: int | None) -> None:
        if encode not in ("keep", "raw"):
            raise ConfigError(114, f"input.encode = {encode}", "not an encoding", "choose keep or raw")
        if size is not None and encode == "keep":
            raise ConfigError(
                115, f"input.size = {list(size)}", "kept bytes cannot be scaled", "set input.encode=raw, or leave size out"
            )
        self.path, self.encode, self.channels = path, encode, channels
        self.resize = None if size is None else Resize(size)

    @cached_property
    def store(self) -> FolderStore:
        return FolderStore(self.path)

    @cached_property
    def manifest(self) -> Manifest:
        found = self.store.manifest
        channels = self.channels or found.fields["image"].shape[0] or 3
        height, width = self._image(0, channels).shape[1:] if self.encode == "raw" else (None, None)
        size = None if self.resize is None else self.resize.size
        options = {"encode": self.encode, "size": size, "channels": channels}
        fields = image_fields(channels, height, width, raw=self.encode == "raw")
        return Manifest(found.num_records, fields, found.classes, found.class_counts, f"folder {self.path}", options)

    def read(self, start: int, stop: int) -> Records:
        field = self.manifest.fields["image"]
        labels = self.store.labels[start:stop].numpy()
        images = [self._image(index, field.shape[0] or 3) for index in range(start, stop)]  # kept bytes too: a check
        if field.encoding != "raw":
            return {"image": [self.store.read_bytes(index) for index in range(start, stop)], "label": labels}
        for index, image in zip(range(start, stop), images, strict=True):
            if image.shape != field.shape:
                what = f"is {image.shape}, the first image {tuple(field.shape)}"
                raise DataError(107, self.store.name(index), what, "set input.size=[height,width], or input.encode=keep")
        return {"image": np.stack(images), "label": labels}

    def _image(self, index: int, channels: int) -> np.ndarray:
        """The decoded image as uint8 [C, H, W]; DataError D106 names the file."""
        try:
            image = decode(self.store.read_bytes(index), channels)
        except BadImage as error:
            raise DataError(106, self.store.name(index), f"not a readable image ({error})", "mend or remove it") from error
        if self.resize is None:
            return image.transpose(2, 0, 1)
        window = self.resize.windows(torch.tensor([image.shape[:2]]), None)[0].tolist()
        return cut(image, tuple(window), self.resize.size)
