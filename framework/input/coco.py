"""COCO's annotations: a JSON file that describes images and the objects in them."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np

from framework.contracts.records import IGNORE, Field, Manifest
from framework.errors import ConfigError, DataError, words_of
from framework.input.rows import Row, RowInput, read_file
from framework.media.decode import MAX_PIXELS, encode_png, image_size
from framework.media.header import BadImage
from framework.media.regions import FARTHEST, painted
from framework.store.values import check_classes

FIELDS = ("boxes", "label", "keypoints", "mask")
CROWDS = ("skip", "keep")
EMPTY = ("keep", "skip")
FIELD_OF = {
    "image": Field("uint8", (3, None, None), "image"),
    "boxes": Field("float32", (None, 4), kind="boxes"),
    "label": Field("int64", (None,)),
    "mask": Field("uint8", (1, None, None), "image", "labels"),
}
FIX = "correct it, or get the annotations again"
BROKEN = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)


class _Object(NamedTuple):
    """An object of an image. ``region``: JSON of its segmentation if masks are wanted, else b""."""

    box: tuple[float, float, float, float]  # left, top, right, bottom
    label: int
    keypoints: tuple[float, ...]
    region: bytes
    is_crowd: bool

    @property
    def area(self) -> float:
        left, top, right, bottom = self.box
        return (right - left) * (bottom - top)


class _Image(NamedTuple):
    file_name: str
    height: int
    width: int
    objects: list[_Object]


class _Annotations(NamedTuple):
    images: list[_Image]
    classes: list[str]
    num_keypoints: int
    num_crowds: int  # left out
    num_flat: int  # objects without area inside their image, left out


@final
@dataclass(eq=False)
class CocoInput(RowInput):
    """A record per image, in the file's order; its key is the image's file name.

    Fields, of which ``fields`` chooses all but the first:

    - ``image``: the file's bytes;
    - ``boxes``: float32 [n, 4]: left, top, right and bottom in pixels, clipped to the image. Boxes
      without any area inside it are left out, and counted;
    - ``label``: int64 [n], the class of each box. Classes are numbered in the order of their ids;
    - ``keypoints``: float32 [n, K, 3]: x, y and visibility (0, 1 or 2);
    - ``mask``: a label map, as PNG. 0 is the background, a class's number + 1 its objects, and 255
      (no class) crowds. Small objects lie on top of large ones.

    n is 0 for an image without objects. ``conf/input/coco.yaml`` describes the options.
    """

    path: str
    images: str
    fields: Sequence[str]
    classes: Sequence[str] | None = None
    crowd: str = "skip"
    empty: str = "keep"

    def __post_init__(self) -> None:
        wrong = [name for name in self.fields if name not in FIELDS]
        if wrong or not self.fields:
            where = f"input.fields = {list(self.fields)}"
            raise ConfigError(162, where, "must choose fields", f"choose from {', '.join(FIELDS)}")
        for key, value, choices in (("crowd", self.crowd, CROWDS), ("empty", self.empty, EMPTY)):
            if value not in choices:
                what = f"must be {' or '.join(choices)}"
                raise ConfigError(162, f"input.{key} = {value}", what, "choose one of them")

    @cached_property
    def annotations(self) -> _Annotations:
        """What the file says. DataError D101, D110, D161, D163, D193."""
        try:
            data = json.loads(read_file(self.path))
            annotations = _Reading(self, data).annotations()
        except BROKEN as error:
            what = f"not COCO annotations ({type(error).__name__}: {words_of(error, 200)})"
            raise DataError(193, self.path, what, FIX) from error
        if not annotations.images:
            fix = "give annotations of images; input.empty=keep keeps those without an object"
            raise DataError(110, self.path, "no image", fix)
        return annotations

    def described(self) -> Manifest:
        annotations = self.annotations
        fields = {name: FIELD_OF[name] for name in ("image", *self.fields) if name in FIELD_OF}
        if "keypoints" in self.fields:
            shape = (None, annotations.num_keypoints, 3)
            fields["keypoints"] = Field("float32", shape, kind="points")
        # without the field, nothing numbers classes
        classes = annotations.classes if "label" in self.fields else []
        notes = [f"{annotations.num_crowds} crowds"] * bool(annotations.num_crowds)
        notes += [f"{annotations.num_flat} boxes without area"] * bool(annotations.num_flat)
        left_out = f" ({', '.join(notes)} left out)" if notes else ""
        source = f"coco {self.path}{left_out}"
        return Manifest(len(annotations.images), fields, classes, source=source)

    def row(self, index: int) -> Row:
        """Read an image.

        Raises:
            DataError: D101 for a missing image file; D106 for one that is no image; D165 for one
                that is not under ``images``; D172 for one of another size; D193 for a region that
                cannot be drawn.
        """
        image = self.annotations.images[index]
        data = read_file(self._file(index))
        try:
            height, width = image_size(data)
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            raise DataError(106, self.name(index), what, "correct or remove it") from error
        if (height, width) != (image.height, image.width):
            what = f"has {height} x {width} pixels, its annotations {image.height} x {image.width}"
            raise DataError(172, self.name(index), what, "get the images of these annotations")
        objects = [item for item in image.objects if not item.is_crowd or self.crowd == "keep"]
        shape = (len(objects), self.annotations.num_keypoints, 3)
        row = {
            "image": data,
            "boxes": np.array([item.box for item in objects], np.float32).reshape(-1, 4),
            "label": np.array([item.label for item in objects], np.int64),
            "keypoints": np.array([item.keypoints for item in objects], np.float32).reshape(shape),
        }
        if "mask" in self.fields:
            row["mask"] = encode_png(self._mask(index, image))
        return {name: row[name] for name in self.manifest.fields}

    def _mask(self, index: int, image: _Image) -> np.ndarray:
        # Crowds are boxes around many objects, of which some have a region of their own.
        largest_first = sorted(image.objects, key=lambda item: (not item.is_crowd, -item.area))
        try:
            regions = [
                (json.loads(item.region), IGNORE if item.is_crowd else item.label + 1)
                for item in largest_first
            ]
            return painted(regions, image.height, image.width)
        except BROKEN as error:
            what = f"a region cannot be drawn: {words_of(error, 200)}"
            raise DataError(193, self.name(index), what, FIX) from error

    def _file(self, index: int) -> str:
        """Return the path of an image. DataError D165 if it is not under the folder ``images``."""
        name = self.annotations.images[index].file_name
        root = os.path.realpath(self.images)
        path = os.path.join(self.images, name)
        if "\0" in name or os.path.commonpath([root, os.path.realpath(path)]) != root:
            what = f"{name!r} is not under {self.images}"
            raise DataError(165, f"{self.path}: image {index}", what, "correct input.images")
        return path

    def key(self, index: int) -> str:
        return self.annotations.images[index].file_name

    def name(self, index: int) -> str:
        return f"{self.path}: {self.annotations.images[index].file_name}"

    def item_files(self, index: int) -> Sequence[str]:
        return (self.path, self._file(index))


@final
class _Reading:
    """The parts of a JSON file, checked one by one. Each method raises one of ``BROKEN``, too."""

    def __init__(self, source: CocoInput, data: dict[str, Any]) -> None:
        self.source = source
        self.data = data
        self.num_flat = 0
        self.num_crowds = 0

    def annotations(self) -> _Annotations:
        categories = sorted(self.data["categories"], key=lambda category: int(category["id"]))
        ids = [int(category["id"]) for category in categories]
        names = [str(category["name"]) for category in categories]
        if len(set(ids)) < len(ids) or len(set(names)) < len(names):
            raise ValueError("two categories have the same id or name")
        "".join(names).encode()  # ValueError for half characters, which cannot be printed
        classes = check_classes(names, self.source.classes, self.source.path)
        numbers = {i: classes.index(name) for i, name in zip(ids, names, strict=True)}
        if "mask" in self.source.fields and len(classes) >= IGNORE:
            raise ValueError(f"{len(classes)} classes do not fit a mask of 8 bits")
        lengths = {len(category.get("keypoints", ())) for category in categories} - {0}
        if "keypoints" in self.source.fields and len(lengths) != 1:
            raise ValueError("categories have no keypoints, or different numbers of them")
        num_keypoints = max(lengths, default=0)
        images = self._images()
        for entry in self.data["annotations"]:
            try:
                self._add(entry, images[entry["image_id"]], numbers, num_keypoints)
            except BROKEN as error:
                number = entry.get("id") if isinstance(entry, dict) else entry
                where = f"{self.source.path}: annotation {number}"
                what = f"is damaged ({type(error).__name__}: {words_of(error, 200)})"
                raise DataError(193, where, what, FIX) from error
        kept = [i for i in images.values() if i.objects or self.source.empty == "keep"]
        return _Annotations(kept, classes, num_keypoints, self.num_crowds, self.num_flat)

    def _images(self) -> dict[Any, _Image]:
        """Return the images by id. DataError D163 for an id that occurs twice."""
        images: dict[Any, _Image] = {}
        for entry in self.data["images"]:
            height, width = int(entry["height"]), int(entry["width"])
            if entry["id"] in images:
                fix = "keep one of them"
                raise DataError(163, self.source.path, f"has image {entry['id']} twice", fix)
            if not 0 < height <= MAX_PIXELS or not 0 < width <= MAX_PIXELS // height:
                raise ValueError(f"image {entry['id']} has {height} x {width} pixels")
            name = entry["file_name"]
            if not isinstance(name, str):
                raise TypeError(f"image {entry['id']} has a file_name that is no text")
            os.fsencode(name)  # ValueError for what no file can be called
            images[entry["id"]] = _Image(name, height, width, [])
        return images

    def _add(
        self, entry: dict[str, Any], image: _Image, numbers: dict[int, int], num_keypoints: int
    ) -> None:
        """Add an object to its image, or count it."""
        x, y, width, height = (float(value) for value in entry["bbox"])
        if not all(map(math.isfinite, (x, y, width, height))):
            raise ValueError(f"the box {entry['bbox']}")
        box = (max(0.0, x), max(0.0, y), min(image.width, x + width), min(image.height, y + height))
        if box[2] <= box[0] or box[3] <= box[1]:
            self.num_flat += 1
            return
        is_crowd = bool(entry.get("iscrowd", 0))
        wants_mask = "mask" in self.source.fields
        if is_crowd and self.source.crowd == "skip":
            self.num_crowds += 1
            if not wants_mask:
                return
        region = b""
        if wants_mask:
            region = json.dumps(entry["segmentation"]).encode()
        points: tuple[float, ...] = ()
        if "keypoints" in self.source.fields:
            points = tuple(map(float, entry.get("keypoints") or (0.0,) * 3 * num_keypoints))
            if len(points) != 3 * num_keypoints:
                raise ValueError(f"{len(points)} numbers of {num_keypoints} keypoints")
            if not all(abs(value) <= FARTHEST for value in points):  # NaN, too
                raise ValueError(f"the keypoints {points}")
        image.objects.append(_Object(box, numbers[entry["category_id"]], points, region, is_crowd))
