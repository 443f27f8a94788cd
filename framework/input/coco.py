"""COCO's annotations: a JSON file that describes images and the objects in them."""

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, final

import cv2
import numpy as np

from framework.contracts.records import IGNORE, Field, Manifest
from framework.errors import ConfigError, DataError, words_of
from framework.input.rows import Row, RowInput, read_file
from framework.media.decode import encode_png
from framework.media.header import MAX_PIXELS, BadImage, read_header
from framework.store.foreign import check_classes

FIELDS = ("boxes", "label", "keypoints", "mask")
FIELD_OF = {
    "image": Field("uint8", (3, None, None), "image"),
    "boxes": Field("float32", (None, 4), kind="boxes"),
    "label": Field("int64", (None,)),
    "mask": Field("uint8", (1, None, None), "image", "labels"),
}
FIX = "correct it, or get the annotations again"
BROKEN = (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError)
FRACTION_BITS = 4  # of a vertex, for OpenCV
FARTHEST = 1 << 20  # pixels; vertices beyond are moved there, so that they fit int32


class _Object(NamedTuple):
    box: tuple[float, float, float, float]  # left, top, right, bottom
    label: int
    keypoints: tuple[float, ...]
    region: bytes  # JSON of its segmentation if masks are wanted
    is_crowd: bool

    @property
    def layer(self) -> tuple[bool, float]:
        """Small objects lie on top. Crowds are boxes around many objects, and lie below."""
        left, top, right, bottom = self.box
        return not self.is_crowd, (left - right) * (bottom - top)


class _Image(NamedTuple):
    file_name: str
    height: int
    width: int
    objects: list[_Object]


@final
@dataclass(eq=False)
class CocoInput(RowInput):
    """A record per image, in the file's order; its key is the image's file name.

    Beside ``image``, the file's bytes, ``fields`` chooses from these of its n objects (perhaps 0):

    - ``boxes``: float32 [n, 4]: left, top, right and bottom in pixels, clipped to the image. Boxes
      without any area inside it are left out, and counted;
    - ``label``: int64 [n], the class of each box. Classes are numbered in the order of their ids;
    - ``keypoints``: float32 [n, K, 3]: x, y and visibility (0, 1 or 2);
    - ``mask``: a label map, as PNG. 0 is the background, a class's number + 1 its objects, and 255
      (no class) crowds. Small objects lie on top of large ones.
    """

    path: str
    images: str
    fields: Sequence[str]
    classes: Sequence[str] | None = None
    crowd: str = "skip"
    empty: str = "keep"

    def __post_init__(self) -> None:
        if not self.fields or not set(self.fields) <= set(FIELDS):
            where = f"input.fields = {list(self.fields)}"
            raise ConfigError(162, where, "must choose fields", f"choose from {', '.join(FIELDS)}")
        for key, value in (("crowd", self.crowd), ("empty", self.empty)):
            if value not in ("skip", "keep"):
                where = f"input.{key} = {value}"
                raise ConfigError(162, where, "must be skip or keep", "choose one of them")
        self._num_crowds = self._num_flat = self._num_keypoints = 0
        self._names: list[str] = []

    @cached_property
    def annotated(self) -> list[_Image]:
        """The images with their objects. DataError D101, D110, D161, D163, D193."""
        images: dict[Any, _Image] = {}
        annotation: Any = None
        try:
            data: dict[str, Any] = json.loads(read_file(self.path))
            categories = sorted(data["categories"], key=lambda category: int(category["id"]))
            ids = [int(category["id"]) for category in categories]
            names = [str(category["name"]) for category in categories]
            if len(set(ids)) < len(ids) or len(set(names)) < len(names):
                raise ValueError("two categories have the same id or name")
            "".join(names).encode()  # ValueError for half characters, which cannot be printed
            self._names = check_classes(names, self.classes, self.path)
            numbers = {i: self._names.index(name) for i, name in zip(ids, names, strict=True)}
            if "mask" in self.fields and len(self._names) >= IGNORE:
                raise ValueError(f"{len(self._names)} classes do not fit a mask of 8 bits")
            lengths = {len(category.get("keypoints", ())) for category in categories} - {0}
            if "keypoints" in self.fields and len(lengths) != 1:
                raise ValueError("categories have no keypoints, or different numbers of them")
            self._num_keypoints = max(lengths, default=0)
            for entry in data["images"]:
                height, width, name = int(entry["height"]), int(entry["width"]), entry["file_name"]
                if entry["id"] in images:
                    what = f"has image {entry['id']} twice"
                    raise DataError(163, self.path, what, "keep one of them")
                if not 0 < height <= MAX_PIXELS or not 0 < width <= MAX_PIXELS // height:
                    raise ValueError(f"image {entry['id']} has {height} x {width} pixels")
                os.fsencode(name)  # TypeError or ValueError for what no file can be called
                images[entry["id"]] = _Image(name, height, width, [])
            for annotation in data["annotations"]:
                self._add(annotation, images[annotation["image_id"]], numbers)
        except BROKEN as error:
            where = self.path
            if isinstance(annotation, dict):
                where += f": annotation {annotation.get('id')}"
            what = f"not COCO annotations ({type(error).__name__}: {words_of(error, 200)})"
            raise DataError(193, where, what, FIX) from error
        kept = [image for image in images.values() if image.objects or self.empty == "keep"]
        if not kept:
            raise DataError(110, self.path, "no image is left", "give some, or input.empty=keep")
        return kept

    def _add(self, entry: dict[str, Any], image: _Image, numbers: dict[int, int]) -> None:
        x, y, width, height = (float(value) for value in entry["bbox"])
        if not all(map(math.isfinite, (x, y, width, height))):
            raise ValueError(f"the box {entry['bbox']}")
        box = (max(0.0, x), max(0.0, y), min(image.width, x + width), min(image.height, y + height))
        if box[2] <= box[0] or box[3] <= box[1]:
            self._num_flat += 1
            return
        is_crowd, wants_mask = bool(entry.get("iscrowd", 0)), "mask" in self.fields
        if is_crowd and self.crowd == "skip":
            self._num_crowds += 1
            if not wants_mask:
                return
        region = json.dumps(entry["segmentation"]).encode() if wants_mask else b""
        points: tuple[float, ...] = ()
        if "keypoints" in self.fields:
            count = 3 * self._num_keypoints
            points = tuple(map(float, entry.get("keypoints") or (0.0,) * count))
            if len(points) != count or not all(abs(value) <= FARTHEST for value in points):
                raise ValueError(f"the keypoints {points} of {self._num_keypoints}")  # NaN, too
        image.objects.append(_Object(box, numbers[entry["category_id"]], points, region, is_crowd))

    def described(self) -> Manifest:
        images = self.annotated
        fields = {name: FIELD_OF[name] for name in ("image", *self.fields) if name in FIELD_OF}
        if "keypoints" in self.fields:
            fields["keypoints"] = Field("float32", (None, self._num_keypoints, 3), kind="points")
        # without the field, nothing numbers classes
        classes = self._names if "label" in self.fields else []
        counts = {"crowds": self._num_crowds, "boxes without area": self._num_flat}
        source = f"coco {self.path}"
        if notes := ", ".join(f"{count} {what}" for what, count in counts.items() if count):
            source += f" ({notes} left out)"
        return Manifest(len(images), fields, classes, source=source)

    def row(self, index: int) -> Row:
        """Read an image. DataError D101, D106, D165, D172 (another size), D193 (a region)."""
        image = self.annotated[index]
        data = read_file(self._file(index))
        try:
            height, width = read_header(data).size
        except (BadImage, ValueError) as error:
            what = f"not a readable image ({error})"
            raise DataError(106, self.name(index), what, "correct or remove it") from error
        if (height, width) != (image.height, image.width):
            what = f"has {height} x {width} pixels, its annotations {image.height} x {image.width}"
            raise DataError(172, self.name(index), what, "get the images of these annotations")
        objects = [item for item in image.objects if not item.is_crowd or self.crowd == "keep"]
        shape = (len(objects), self._num_keypoints, 3)
        row = {
            "image": data,
            "boxes": np.array([item.box for item in objects], np.float32).reshape(-1, 4),
            "label": np.array([item.label for item in objects], np.int64),
            "keypoints": np.array([item.keypoints for item in objects], np.float32).reshape(shape),
        }
        if "mask" in self.fields:
            try:
                regions = [
                    (json.loads(item.region), IGNORE if item.is_crowd else item.label + 1)
                    for item in sorted(image.objects, key=lambda item: item.layer)
                ]
                row["mask"] = encode_png(painted(regions, height, width))
            except BROKEN as error:
                what = f"a region cannot be drawn: {words_of(error, 200)}"
                raise DataError(193, self.name(index), what, FIX) from error
        return {name: row[name] for name in self.manifest.fields}

    def _file(self, index: int) -> str:
        """Return the path of an image. DataError D165 if it is not under the folder ``images``."""
        name = self.key(index)
        root = os.path.realpath(self.images)
        path = os.path.join(self.images, name)
        if "\0" in name or os.path.commonpath([root, os.path.realpath(path)]) != root:
            what = f"{name!r} is not under {self.images}"
            raise DataError(165, f"{self.path}: image {index}", what, "correct input.images")
        return path

    def key(self, index: int) -> str:
        return self.annotated[index].file_name

    def item_files(self, index: int) -> Sequence[str]:
        return (self.path, self._file(index))


def painted(regions: Sequence[tuple[Any, int]], height: int, width: int) -> np.ndarray:
    """Return a label map, uint8 [1, height, width], of pairs (region, value), the last on top.

    A region is a list of polygons ``[x, y, x, y, ...]`` in pixels, or ``{size, counts}``.
    ValueError if not, or for an image of another size.
    """
    painting = np.zeros((height, width), np.uint8)
    for region, value in regions:
        if not isinstance(region, list):
            if not isinstance(region, dict) or list(region.get("size", ())) != [height, width]:
                raise ValueError("neither polygons nor run lengths of this image's size")
            counts: Any = region.get("counts")
            if isinstance(counts, str):
                counts = run_lengths(counts)
            if sum(counts) != height * width:
                raise ValueError(f"its counts make {sum(counts)} pixels, not {height * width}")
            inside = np.repeat(np.arange(len(counts)) % 2 == 1, counts)
            painting[inside.reshape(width, height).T] = value  # they go down the columns
            continue
        for polygon in region:
            points = np.asarray(polygon, np.float64).reshape(-1, 2)
            if len(points) < 3 or not np.isfinite(points).all():
                raise ValueError("a polygon is not at least three points of finite numbers")
            # COCO's pixel 0 goes from 0 to 1, and OpenCV's has its center at 0.
            points = (points.clip(-FARTHEST, FARTHEST) - 0.5) * (1 << FRACTION_BITS)
            vertices = [np.round(points).astype(np.int32)]
            cv2.fillPoly(painting, vertices, (value,), shift=FRACTION_BITS)
    return painting[None]


def run_lengths(text: str) -> list[int]:
    """Return the run lengths in COCO's compressed text. ValueError for other texts.

    Six bits a character: five of the number, lowest first, and whether more follow. From the fourth
    on, each number is the difference to the one two places before it.

    Source: the format of ``rleToString`` in the COCO API.
    """
    counts: list[int] = []
    number = place = 0
    for character in text:
        bits = ord(character) - 48
        if not 0 <= bits < 64 or place > 60:
            raise ValueError("its counts are not compressed run lengths")
        number |= (bits & 31) << place
        place += 5
        if bits & 32:
            continue
        if bits & 16:  # the sign
            number -= 1 << place
        if len(counts) > 2:
            number += counts[-2]
        counts.append(number)
        number = place = 0
    if place:
        raise ValueError("its counts end inside a number")
    return counts
