"""Images in memory or named by their paths, and what is predicted for them."""

import os
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts.data import Transform
from framework.contracts.prediction import (
    ClassProbabilities,
    PredictedBoxes,
    PredictedImages,
    PredictedMaps,
    PredictedNumbers,
    PredictedTexts,
    Predictions,
    ScoredBoxes,
)
from framework.contracts.records import Chunk, Field, Manifest
from framework.data.reader import BatchReader
from framework.errors import ConfigError
from framework.input.rows import read_file
from framework.media.decode import encode_png
from framework.media.scale import boxes_in_image, map_in_image

Size = tuple[int, int]
FORMS = "a list of paths, PIL images or arrays [H, W, C], or a tensor [B, C, H, W]"


@final
class ImageInput:
    """Images in memory, or named by their paths, as an input with one field.

    Args:
        images: Paths, PIL images, arrays uint8 or uint16 [H, W] or [H, W, 1 or 3], or a tensor
            uint8 or uint16 [B, C, H, W].
        name: The field.

    Raises:
        ConfigError: C360 for anything else.
    """

    def __init__(self, images: Any, name: str) -> None:
        field = Field("uint8", (3, None, None), "image")
        self._images = images
        if isinstance(images, Tensor):
            if images.dtype not in (torch.uint8, torch.uint16):
                what = f"is {_form(images)}, and pixels must be uint8 or uint16"
                fix = "convert it, or give floats as the model gets them"
                raise ConfigError(360, "images", what, fix)
            field = Field(str(images.dtype).removeprefix("torch."), tuple(images.shape[1:]))
            values: Any = images.cpu().numpy()
        elif isinstance(images, str | bytes | os.PathLike):
            what = f"is one image, and not {FORMS}"
            raise ConfigError(360, "images", what, "put it into a list")
        else:
            values = [_file_bytes(image, number) for number, image in enumerate(images)]
        self._records = {name: values}
        self.manifest = Manifest(len(images), {name: field}, source="images")

    def read(self, start: int, stop: int) -> Chunk:
        records = {name: values[start:stop] for name, values in self._records.items()}
        return Chunk(records, [str(number) for number in range(start, stop)])

    def name(self, index: int) -> str:
        image = self._images[index]
        return os.fspath(image) if isinstance(image, str | os.PathLike) else f"images[{index}]"


def _file_bytes(image: Any, number: int) -> bytes:
    """Return an image as the bytes of an image file, without loss."""
    if isinstance(image, str | os.PathLike):
        return read_file(os.fspath(image))
    if hasattr(image, "convert") and hasattr(image, "save"):  # PIL's, without importing it
        if image.mode[0] not in "IF":  # these have more than 8 bits, which PIL would clip
            if image.mode not in ("L", "RGB"):
                image = image.convert("RGB")
            file = BytesIO()
            image.save(file, "PNG")
            return file.getvalue()
        pixels = np.asarray(image)
        if pixels.dtype.kind != "f" and pixels.min() >= 0 and pixels.max() < 1 << 16:
            image = pixels.astype(np.uint16)
    is_array = isinstance(image, np.ndarray) and image.dtype in (np.uint8, np.uint16)
    if is_array and image.ndim in (2, 3):
        planes = np.atleast_3d(image).transpose(2, 0, 1)
        if planes.shape[0] in (1, 3):
            return encode_png(np.ascontiguousarray(planes))
    what = f"is {_form(image)}, and images must be {FORMS}, with 1 or 3 channels of uint8 or uint16"
    raise ConfigError(360, f"images[{number}]", what, "convert it")


def _form(image: Any) -> str:
    if isinstance(image, np.ndarray | Tensor):
        return f"{image.dtype} {list(image.shape)}"
    return f"of the type {type(image).__name__}"


class ImagePlace(NamedTuple):
    """The part of an image that the model saw."""

    size: Size  # (height, width) of the image
    window: Sequence[int]  # top, left, height and width of the part
    seen: Size  # (height, width) that the part was scaled to


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
    sizes = [
        (int(height), int(width)) for height, width in reader.pictures.sizes(field, values, indices)
    ]
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


def as_dicts(
    predictions: Predictions, places: Sequence[ImagePlace] | None, classes: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield what is predicted for each record, with names of classes.

    Args:
        predictions: Of a batch.
        places: Where the model has looked in each image; None: label maps and boxes are in the
            pixels that the model saw.
        classes: The names of the classes by number.
    """
    if isinstance(predictions, ClassProbabilities):
        for row in predictions.values.cpu().tolist():
            best = max(range(len(row)), key=row.__getitem__)
            names = [class_name(classes, number) for number in range(len(row))]
            yield {
                "class": names[best],
                "probability": row[best],
                "probabilities": dict(zip(names, row, strict=True)),
            }
    elif isinstance(predictions, PredictedMaps):
        yield from ({"map": numbers} for numbers in in_images(predictions, places))
    elif isinstance(predictions, PredictedBoxes):
        for scored in in_images(predictions, places):
            yield {
                "boxes": scored.boxes.numpy(),
                "scores": scored.scores.numpy(),
                "classes": [class_name(classes, number) for number in scored.labels.tolist()],
            }
    elif isinstance(predictions, PredictedTexts):
        yield from ({"text": text} for text in predictions.values)
    elif isinstance(predictions, PredictedNumbers):
        yield from ({"numbers": numbers} for numbers in predictions.values.cpu().numpy())
    else:
        yield from ({"image": image} for image in as_pixels(predictions))


def as_pixels(predictions: PredictedImages) -> list[np.ndarray]:
    """Return pictures as uint8 [H, W, C]."""
    pixels = (predictions.values * 255).round().clamp(0, 255).to(torch.uint8)
    return list(pixels.permute(0, 2, 3, 1).cpu().numpy())


def class_name(classes: Sequence[str], number: int) -> str:
    """Return the name of a class, or its number if it has none."""
    if 0 <= number < len(classes):
        return classes[number]
    return str(number)
