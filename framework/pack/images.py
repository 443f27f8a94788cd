"""What is done to images on their way into a store: check, turn upright, scale, re-encode; by the one rule of ``data.decode``."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import torch
from torch.nn.functional import interpolate

from framework.contracts.records import Chunk, Field, RecordInput
from framework.errors import ConfigError, DataError
from framework.image.decode import (
    LARGEST,
    MAX_PIXELS,
    accepted_header,
    convert,
    decode_deep,
    decode_shrunk,
    encode_jpeg,
    encode_png,
)
from framework.image.header import BadImage
from framework.image.label_map import decode_labels
from framework.image.scale import scale, scale_labels
from framework.transform.resize import centered

ENCODINGS = ("keep", "jpeg", "png", "raw")
COLORS = {"rgb": 3, "gray": 1}
QUALITY = 90  # what conf/pack.yaml gives; beside another encoding than jpeg it asks for nothing
TRIES = 100  # items looked at for a first image before the error of the first of them is believed


@final
@dataclass(frozen=True)
class Preparation:
    """Pure and picklable: the same images give the same bytes.

    ``encode``: keep (each file's own bytes, after a check), jpeg (4:2:0; all are encoded anew, JPEGs too), png, or raw (arrays
    of one shape: [C, H, W], or [H, W, C] with ``layout`` hwc, which is faster to cut and scale in training). ``resize``: the shorter side to so many pixels; ``max_side``: the longer one to at most so many;
    neither enlarges. ``size``: the largest centered window of its shape, scaled to exactly (height, width), larger or smaller.
    Shrinking is antialiased (``data.scale``); a JPEG at least twice as large is first decoded at 1/2, 1/4 or 1/8, which libjpeg does
    by averaging. ``quality``: of JPEGs. ``color``: rgb or gray; None: as in the input's first image. ``bit_depth``: what becomes of 16-bit
    images: None: refused; 8: divided by 257 and rounded; 16: everything becomes uint16, 8-bit images times 257. ``max_pixels``: of any
    image, as its header has it. Several image fields are prepared alike, so that equal sizes stay equal. Label maps keep their numbers:
    they are scaled to the nearest pixel, and ``color`` and ``bit_depth`` are not for them.

    ConfigError C140 for a value that cannot be, C141 for two that exclude each other; ``fields``: C177 for label maps as JPEGs.
    """

    encode: str = "keep"
    resize: int | None = None
    max_side: int | None = None
    size: Sequence[int] | None = None
    quality: int | None = None
    color: str | None = None
    bit_depth: int | None = None
    max_pixels: int = MAX_PIXELS
    layout: str = "chw"
    settled: dict[str, Field | None] = field(
        default_factory=dict[str, Field | None], init=False, compare=False, repr=False
    )

    def __post_init__(self) -> None:
        for name, possible, words in (
            ("encode", self.encode in ENCODINGS, "keep, jpeg, png or raw"),
            ("resize", self.resize is None or self.resize >= 1, "at least 1 pixel"),
            ("max_side", self.max_side is None or self.max_side >= 1, "at least 1 pixel"),
            (
                "size",
                self.size is None
                or (
                    len(self.size) == 2
                    and min(self.size) >= 1
                    and self.size[0] * self.size[1] <= self.max_pixels
                ),
                "[height, width], at least 1 pixel each, together no more than pack.max_pixels",
            ),
            ("quality", self.quality is None or 1 <= self.quality <= 100, "1 to 100"),
            ("color", self.color in (None, *COLORS), "rgb, gray, or null: as in the first image"),
            (
                "bit_depth",
                self.bit_depth in (None, 8, 16),
                "8, 16, or null: 16-bit images are refused",
            ),
            ("layout", self.layout in ("chw", "hwc"), "chw or hwc"),
            ("max_pixels", 1 <= self.max_pixels <= LARGEST, f"1 to {LARGEST}"),
        ):
            if not possible:
                raise ConfigError(
                    140,
                    f"pack.{name} = {getattr(self, name)}",
                    "not a value it can have",
                    f"give {words}",
                )
        self._check_together()

    def _check_together(self) -> None:
        def exclude(first: str, second: str, fix: str) -> None:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                where = f"pack.{first} = {getattr(self, first)}, pack.{second} = {getattr(self, second)}"
                raise ConfigError(141, where, "one excludes the other", fix)

        exclude("resize", "max_side", "leave one out")
        exclude("resize", "size", "leave one out")
        exclude("max_side", "size", "leave one out")
        if self.encode == "keep":
            for name in ("resize", "max_side", "size", "bit_depth"):
                exclude(
                    name, "encode", "kept bytes are not changed: set pack.encode=jpeg, png or raw"
                )
        if self.bit_depth == 16 and self.encode != "raw":
            exclude("bit_depth", "encode", "16 bits are stored as arrays only: set pack.encode=raw")
        if self.layout == "hwc" and (self.encode != "raw" or self.bit_depth == 16):
            exclude(
                "layout",
                "encode",
                "only 8-bit arrays can be interleaved: set pack.encode=raw, or leave it out",
            )
        if self.quality != QUALITY and self.encode != "jpeg":
            exclude(
                "quality",
                "encode",
                "only JPEGs have a quality: set pack.encode=jpeg, or leave it out",
            )

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for, as the manifest has it."""
        asked: dict[str, Any] = {"encode": self.encode}
        for name in ("resize", "max_side", "size", "color", "bit_depth"):
            value: Any = getattr(self, name)
            if value is not None:
                asked[name] = list(value) if name == "size" else value
        if self.encode == "jpeg":
            asked["quality"] = self._quality
        if self.layout != "chw":
            asked["layout"] = self.layout
        if self.max_pixels != MAX_PIXELS:
            asked["max_pixels"] = self.max_pixels
        return asked

    @property
    def _quality(self) -> int:
        return QUALITY if self.quality is None else self.quality

    @property
    def _changes(self) -> bool:
        """Whether pixels that are arrays already have to be touched."""
        asked = (self.resize, self.max_side, self.size, self.color)
        return (
            self.encode in ("jpeg", "png")
            or self.bit_depth == 16
            or self.layout == "hwc"
            or any(value is not None for value in asked)
        )

    def fields(self, source: RecordInput) -> dict[str, Field]:
        """The fields of what ``source`` gives once prepared, which is settled by this call: it comes before any other, in the process
        that hands this object to others. Image fields become images or arrays; arrays uint8 [1 or 3, H, W] are treated as
        images where their pixels are to be changed; other fields stay. ``raw``: the shape is that of the first image that is readable.

        ConfigError C142 where something was asked of images and there are none; DataError as ``source`` and the images have it.
        """
        self._check_label_maps(source.manifest.label_maps)
        found = {
            name: field for name, field in source.manifest.fields.items() if self._is_image(field)
        }
        if not found and (self._changes or self.bit_depth is not None):
            where = ", ".join(f"pack.{name} = {value}" for name, value in self.options.items())
            raise ConfigError(142, where, "no field of the input is an image", "leave it out")
        results = {name: self._result(field) for name, field in found.items()}
        self.settled.clear()
        self.settled.update({name: results.get(name) for name in source.manifest.fields})
        if any(None in field.shape and field.encoding == "raw" for field in results.values()):
            results = self._first_shapes(source, list(results))
            self.settled.update(results)
        return {
            **source.manifest.fields,
            **{name: self._laid_out(field) for name, field in results.items()},
        }

    def _check_label_maps(self, names: Sequence[str]) -> None:
        if names and self.encode == "jpeg":
            where = f"pack.encode = jpeg, label map {', '.join(names)}"
            fix = "set pack.encode=png, raw or keep; input.labels=[] if it is a picture"
            raise ConfigError(177, where, "a JPEG changes class numbers", fix)

    def _laid_out(self, field: Field) -> Field:
        """The field as it is stored; inside, shapes are those of planes."""
        if field.encoding != "raw" or self.layout == "chw":
            return field
        return replace(field, shape=(*field.shape[1:], field.shape[0]))

    def _is_image(self, field: Field) -> bool:
        return field.encoding == "image" or (field.channels is not None and self._changes)

    def _result(self, field: Field) -> Field:
        """The field prepared; its height and width open where only an image can tell them."""
        is_map = field.kind == "labels"
        kind = "labels" if is_map else ""
        channels = field.channels if self.color is None or is_map else COLORS[self.color]
        if self.encode in ("jpeg", "png") or (self.encode == "keep" and field.encoding == "image"):
            return Field("uint8", (channels, None, None), "image", kind)
        shape = tuple(self.size or (field.shape[:2] if field.interleaved else field.shape[1:]))
        if None not in shape:
            shape = self._scaled_size((int(shape[0] or 0), int(shape[1] or 0)))
        return Field(
            "uint16" if self.bit_depth == 16 and not is_map else "uint8",
            (channels, *shape),
            kind=kind,
        )

    def _first_shapes(self, source: RecordInput, names: list[str]) -> dict[str, Field]:
        errors: list[DataError] = []
        for item in range(min(source.manifest.num_records, TRIES)):
            try:
                chunk = source.read(item, item + 1)
                if chunk.keys:
                    first = {name: self._pixels(chunk, name, 0) for name in names}
                    return {
                        name: replace(
                            self._target(name),
                            dtype=str(image.dtype),
                            shape=image.transpose(2, 0, 1).shape,
                        )
                        for name, image in first.items()
                    }
            except DataError as error:
                errors.append(error)
        if not errors:
            raise DataError(
                140,
                source.manifest.source,
                f"no record in its first {TRIES} items",
                "set pack.size",
            )
        raise errors[0]

    def __call__(self, chunk: Chunk) -> Chunk:
        """The records prepared, the given ones unchanged. DataError D106 names an image that cannot be read, D107 one of another shape
        than the field's.
        """
        assert self.settled, "fields() comes first"
        records = {
            name: values if self.settled[name] is None else self._field(chunk, name)
            for name, values in chunk.records.items()
        }
        return Chunk(records, chunk.keys)

    def _target(self, name: str) -> Field:
        found = self.settled[name]
        assert found is not None
        return found

    def _field(self, chunk: Chunk, name: str) -> Any:
        result, numbers = self._target(name), range(len(chunk.keys))
        if self.encode == "keep" and result.encoding == "image":
            for number in numbers:
                self._check(chunk, name, number)
            return chunk.records[name]
        if result.encoding == "image":
            return [self._encoded(self._pixels(chunk, name, number)) for number in numbers]
        stored = np.empty(
            (len(numbers), *(side or 0 for side in self._laid_out(result).shape)), result.dtype
        )
        arrays = stored if self.layout == "chw" else stored.transpose(0, 3, 1, 2)
        for number in numbers:
            image = self._pixels(chunk, name, number).transpose(2, 0, 1)
            if image.shape != result.shape:
                what = f"{name} is {_words(image.shape)}, the first {_words(result.shape)}"
                raise DataError(
                    107,
                    chunk.keys[number],
                    what,
                    "set pack.size=[height,width], or pack.encode=jpeg or png",
                )
            arrays[number] = image
        return stored

    def _encoded(self, image: np.ndarray) -> bytes:
        planes = image.transpose(2, 0, 1)
        return encode_png(planes) if self.encode == "png" else encode_jpeg(planes, self._quality)

    def _check(self, chunk: Chunk, name: str, number: int) -> None:
        """Decode an image that is kept as it is; a JPEG at 1/8 of its size, for which all of the file is read."""
        data, target = chunk.records[name][number], self._target(name)
        try:
            if target.kind == "labels":
                decode_labels(data, self.max_pixels)
            else:
                decode_shrunk(data, target.shape[0] or 3, (1, 1), self.max_pixels)
        except BadImage as error:
            raise _bad(chunk.keys[number], name, error) from error

    def _pixels(self, chunk: Chunk, name: str, number: int) -> np.ndarray:
        """One image, upright and scaled: uint8 or uint16 [h, w, C]."""
        value, channels = chunk.records[name][number], self._target(name).shape[0] or 3
        is_map = self._target(name).kind == "labels"
        if isinstance(value, np.ndarray):
            planes = value.shape[0] in (1, 3)  # as contracts.Field tells them apart
            image = convert(
                np.ascontiguousarray(value.transpose(1, 2, 0) if planes else value), channels
            )
            return self._scaled(image, image.shape[:2], is_map)
        try:
            if is_map:
                image = decode_labels(value, self.max_pixels)
                return self._scaled(image, image.shape[:2], is_map)
            return self._scaled(*self._decoded(value, channels), is_map)
        except BadImage as error:
            raise _bad(chunk.keys[number], name, error) from error

    def _decoded(self, data: Any, channels: int) -> tuple[np.ndarray, tuple[int, ...]]:
        """(the image, perhaps smaller than it is, but no smaller than needed; its whole size)."""
        header = accepted_header(data, self.max_pixels, deepest=8 if self.bit_depth is None else 16)
        if header.bit_depth == 16:
            deep = decode_deep(data, channels, self.max_pixels)
            return deep if self.bit_depth == 16 else ((deep.astype(np.uint32) + 128) // 257).astype(
                np.uint8
            ), header.size
        height, width = header.size
        wanted, (_, _, window_height, window_width) = (
            self._scaled_size(header.size),
            self._window(header.size),
        )
        least = -(-height * wanted[0] // window_height), -(-width * wanted[1] // window_width)
        return decode_shrunk(data, channels, least, self.max_pixels), header.size

    def _window(self, size: tuple[int, ...]) -> tuple[int, int, int, int]:
        """(top, left, height, width) of what is kept of an image of this size."""
        if self.size is None:
            return 0, 0, size[0], size[1]
        top, left, height, width, _ = centered(
            torch.tensor([size[:2]]), (self.size[0], self.size[1])
        )[0].tolist()
        return top, left, height, width

    def _scaled_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        """(height, width) of what becomes of an image of this size."""
        if self.size is not None:
            return self.size[0], self.size[1]
        factor = 1.0
        if self.resize is not None:
            factor = min(1.0, self.resize / min(size))
        elif self.max_side is not None:
            factor = min(1.0, self.max_side / max(size))
        return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))

    def _scaled(self, image: np.ndarray, whole: tuple[int, ...], is_map: bool) -> np.ndarray:
        """[H, W, C] -> [h, w, C], as an image of the size ``whole`` is to be."""
        top, left, height, width = self._window(image.shape[:2])
        image, size = image[top : top + height, left : left + width], self._scaled_size(whole)
        if is_map:
            return scale_labels(image.transpose(2, 0, 1), size).transpose(1, 2, 0)
        if image.dtype == np.uint16:
            return _scaled_deep(image, size)
        image = scale(image, size, antialias=True)
        return image * np.uint16(257) if self.bit_depth == 16 else image


def _scaled_deep(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """uint16 [H, W, C] -> uint16 [*size, C] by the filter of ``data.scale``, which is for 8 bits."""
    if image.shape[:2] == size:
        return image
    pixels = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None]
    return (
        interpolate(pixels, size, mode="bilinear", antialias=True)[0]
        .permute(1, 2, 0)
        .round()
        .clamp(0, 65535)
        .numpy()
        .astype(np.uint16)
    )


def _bad(key: str, name: str, error: BadImage) -> DataError:
    return DataError(106, key, f"{name} is not a readable image ({error})", "mend or remove it")


def _words(shape: Sequence[int | None]) -> str:
    return "x".join(map(str, shape))
