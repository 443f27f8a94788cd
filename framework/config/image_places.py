"""Where the predictions of a batch lie in the images that were given."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from framework.contracts.data import Transform
from framework.contracts.prediction import (
    PredictedBoxes,
    PredictedMaps,
    Predictions,
    ScoredBoxes,
)
from framework.data.reader import BatchReader
from framework.media.boxes import boxes_in_image, map_in_image

Size = tuple[int, int]


class ImagePlace(NamedTuple):
    """The part of an image that the model saw.

    Attributes:
        size: (height, width) of the image.
        window: Top, left, height and width of the part.
        seen: (height, width) that the part was scaled to.
    """

    size: Size
    window: Sequence[int]
    seen: Size


def image_places(
    reader: BatchReader, name: str, values: Any, indices: Tensor
) -> list[ImagePlace] | None:
    """Return the place of each record's image, from the bytes or the pixels of the images.

    None if the field is no image, or if a function of the transform may have moved its pixels.

    Args:
        reader: Reads the records, and knows the transform.
        name: The field of the image.
        values: What the store gave for the field.
        indices: The records: int64 [B].
    """
    field = reader.store.manifest.fields[name]
    transform: Transform = reader.transform
    if field.channels is None or transform.function is not None:
        return None
    sizes = [(int(height), int(width)) for height, width in reader.sizes(field, values, indices)]
    windows = [[0, 0, *size] for size in sizes]
    if name in reader.cut:
        windows = transform.windows(torch.tensor(sizes), None)[:, :4].tolist()
    return [
        ImagePlace(size, window, transform.size or (window[2], window[3]))
        for size, window in zip(sizes, windows, strict=True)
    ]


def in_images(predictions: Predictions, places: Sequence[ImagePlace] | None) -> list[Any]:
    """Return label maps (NumPy [H, W]) or ``ScoredBoxes`` of each record, on the host.

    They are in the pixels of the images that were given, or in those that the model saw if no
    places are known.
    """
    if isinstance(predictions, PredictedMaps):
        maps = list(predictions.values.cpu().numpy())
        if places is None:
            return maps
        pairs = zip(maps, places, strict=True)
        return [map_in_image(numbers, place.window, place.size) for numbers, place in pairs]
    assert isinstance(predictions, PredictedBoxes)
    boxes = [ScoredBoxes(*(part.cpu() for part in scored)) for scored in predictions.values]
    if places is None:
        return boxes
    return [
        scored._replace(boxes=boxes_in_image(scored.boxes, place.window, place.seen, place.size))
        for scored, place in zip(boxes, places, strict=True)
    ]
