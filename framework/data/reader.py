"""Indices to a host batch: read, decode, transform. Picklable, so any kind of worker can do it."""

from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.batch import Batch
from framework.contracts import Field, RecordStore, SourceContext, Transform
from framework.data.decode import BadImage, cut, decode
from framework.errors import DataError
from framework.order import draws


class Request(NamedTuple):
    """One batch to be read. ``training`` False: the transform draws nothing."""

    epoch: int
    indices: Tensor
    training: bool


def is_cut(field: Field, transform: Transform) -> bool:
    """Whether a transform has a say in a field: image files always, pixels stored raw (uint8 [1 or 3, H, W]) where it changes any."""
    if field.encoding != "raw":
        return True
    is_image = field.dtype == "uint8" and len(field.shape) == 3 and field.shape[0] in (1, 3)
    return is_image and (transform.size is not None or transform.num_draws > 0)


@final
class BatchReader:
    """Reads batches from a store. ``index`` is added to every batch; image fields become uint8 [B, C, H, W]."""

    def __init__(self, store: RecordStore, context: SourceContext) -> None:
        self.store, self.transform, self.seed = store, context.transform, context.seed

    def __call__(self, request: Request) -> Batch:
        records = self.store.read(request.indices)
        batch: Batch = {"index": request.indices.clone()}
        for name, field in self.store.manifest.fields.items():
            if not is_cut(field, self.transform):
                batch[name] = records[name]
            else:
                images = self._images(records[name], field.shape[0], request.indices)
                batch[name] = self._stack(self._transformed(images, request), request.indices)
        return batch

    def _images(self, values: Any, channels: int | None, indices: Tensor) -> list[np.ndarray]:
        """[H, W, C] arrays."""
        if isinstance(values, Tensor):
            return list(values.permute(0, 2, 3, 1).numpy())
        images: list[np.ndarray] = []
        for index, data in zip(indices.tolist(), values, strict=True):
            try:
                images.append(decode(data, channels or 3))
            except BadImage as error:
                raise DataError(106, self.store.name(index), f"not a readable image ({error})", "mend or remove it") from error
        return images

    def _transformed(self, images: list[np.ndarray], request: Request) -> list[np.ndarray]:
        sizes = torch.tensor([image.shape[:2] for image in images])
        numbers = draws(request.indices, self.seed, request.epoch, self.transform.num_draws) if request.training else None
        windows = self.transform.windows(sizes, numbers).tolist()
        return [cut(image, tuple(window), self.transform.size) for image, window in zip(images, windows, strict=True)]

    def _stack(self, images: list[np.ndarray], indices: Tensor) -> Tensor:
        shapes = [image.shape for image in images]
        if len(set(shapes)) > 1:
            odd = next(i for i, shape in enumerate(shapes) if shape != shapes[0])
            what = f"the image is {shapes[odd]}, another of its batch {shapes[0]}"
            raise DataError(107, self.store.name(int(indices[odd])), what, "set transform=resize, or pack with one size")
        return torch.from_numpy(np.stack(images))
