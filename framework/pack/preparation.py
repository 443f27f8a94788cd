"""The preparation of records for a store.

Images, also frames of videos, are checked, turned upright, scaled and encoded, and decoded by the
one rule of ``framework.media.decode``. Sounds get one rate and one number of channels.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from fractions import Fraction
from itertools import combinations
from typing import Any, final

import numpy as np
import torch
from torch.nn.functional import interpolate

from framework.contracts.records import Chunk, Field, RecordInput
from framework.errors import ConfigError, DataError
from framework.media import decode as decoding
from framework.media import sound_video
from framework.media.decode import LARGEST, accepted_header, convert
from framework.media.header import MAX_PIXELS, BadImage
from framework.media.scale import moved_boxes, moved_points, scale, scale_labels
from framework.media.sound_video import BadSound, SoundHeader, checked_header, resampled
from framework.pack.jobs import prepared
from framework.transform.resize import centered

ENCODINGS = ("keep", "jpeg", "png", "raw")
COLORS = {"rgb": 3, "gray": 1}
QUALITY = 90  # the default in conf/pack.yaml; any other value needs encode=jpeg
TRIES = 100  # items that are tried until one can be read
MOST_BYTES = (1 << 31) - 1  # of a record; LMDB holds no more


@final
@dataclass
class Preparation:
    """A pure, picklable change of images: the same images give the same bytes.

    Shrinking is antialiased. A JPEG at least twice as large is first decoded at 1/2, 1/4 or 1/8.
    Images of a record, and frames of a video, are prepared alike. Label maps keep their numbers.
    ConfigError C140 for a value that is not possible, C141 for two that exclude each other.
    """

    encode: str = "keep"  # or jpeg (4:2:0; JPEGs are encoded again, too), png, raw (one shape)
    resize: int | None = None  # pixels of the shorter side; smaller images are not enlarged
    max_side: int | None = None  # pixels of the longer side; smaller images are not enlarged
    size: Sequence[int] | None = None  # the largest centered window of this shape is scaled to it
    quality: int | None = None  # of JPEGs, 1 to 100
    color: str | None = None  # rgb, gray, or None for that of the input
    bit_depth: int | None = None  # of images of 16 bits: 8 or 16; None refuses them
    rate: int | None = None  # of sounds, in Hz; None: all must have one rate
    frame_rate: float | None = None  # of videos, per second; None: all frames
    layout: str = "chw"  # of arrays; hwc is faster to cut and scale in training
    max_pixels: int = MAX_PIXELS  # of an image, according to its header

    def __post_init__(self) -> None:
        size = self.size
        size_fits = size is None or (
            len(size) == 2 and min(size) >= 1 and size[0] * size[1] <= self.max_pixels
        )
        for name, is_possible, words in (
            ("encode", self.encode in ENCODINGS, "keep, jpeg, png or raw"),
            ("resize", self.resize is None or self.resize >= 1, "at least 1 pixel"),
            ("max_side", self.max_side is None or self.max_side >= 1, "at least 1 pixel"),
            ("size", size_fits, "[height, width], at most pack.max_pixels pixels in all"),
            ("quality", self.quality is None or 1 <= self.quality <= 100, "1 to 100"),
            ("color", self.color in (None, *COLORS), "rgb, gray, or null: as the input has it"),
            ("rate", self.rate is None or self.rate >= 1, "at least 1 Hz"),
            ("frame_rate", self.frame_rate is None or 0 < self.frame_rate <= 1000, "0 to 1000"),
            ("bit_depth", self.bit_depth in (None, 8, 16), "8, 16, or null: 16 bits are refused"),
            ("layout", self.layout in ("chw", "hwc"), "chw or hwc"),
            ("max_pixels", 1 <= self.max_pixels <= LARGEST, f"1 to {LARGEST}"),
        ):
            if not is_possible:
                where = f"pack.{name} = {getattr(self, name)}"
                raise ConfigError(140, where, f"must be {words}", "correct it, or leave it out")
        sizes = combinations(("resize", "max_side", "size"), 2)
        pairs = [(first, second, "leave one out") for first, second in sizes]
        if self.encode == "keep":
            ways = "raw" if self.bit_depth == 16 else "jpeg, png or raw"
            fix = f"kept bytes do not change: set pack.encode={ways}"
            pairs += [(name, "encode", fix) for name in ("resize", "max_side", "size", "bit_depth")]
        if self.bit_depth == 16 and self.encode != "raw":
            fix = "16 bits are stored as arrays only: set pack.encode=raw"
            pairs.append(("bit_depth", "encode", fix))
        if self.layout == "hwc" and (self.encode != "raw" or self.bit_depth == 16):
            pairs.append(("layout", "encode", "only 8-bit arrays interleave: set pack.encode=raw"))
        if self.quality != QUALITY and self.encode != "jpeg":
            pairs.append(("quality", "encode", "only JPEGs have a quality: set pack.encode=jpeg"))
        for first, second, fix in pairs:
            values = getattr(self, first), getattr(self, second)
            if None not in values:
                where = f"pack.{first} = {values[0]}, pack.{second} = {values[1]}"
                raise ConfigError(141, where, "one excludes the other", fix)
        # ``fields`` settles these.
        self.images: dict[str, Field] = {}  # prepared; of pixels, the shape is [C, H, W]
        self.moving: dict[str, str] = {}  # the kind of each field that is scaled with its image
        self.sampled: list[str] = []  # the fields that are gray because a sample of them is
        self.sounds: list[str] = []  # their fields
        self.first_sound: Any = None  # its header
        self.given: dict[str, Field] = {}  # the videos of the input
        self.videos: dict[str, Field] = {}  # the same, prepared

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for, for the manifest."""
        options: dict[str, Any] = {"encode": self.encode}
        for own in dataclass_fields(self):
            value: Any = getattr(self, own.name)
            if own.name not in ("encode", "quality") and value != own.default:
                options[own.name] = list(value) if own.name == "size" else value
        if self.encode == "jpeg":
            options["quality"] = self.quality or QUALITY
        if self.first_sound is not None:
            options.setdefault("rate", self.first_sound.rate)
        return options

    def fields(self, source: RecordInput) -> dict[str, Field]:
        """Return the fields of the prepared records, and settle them for ``__call__``.

        Raw pixels are images if they are to be changed. Arrays get the shape of the first readable
        image. ConfigError C142 for options of a kind that no field has, C177 for a label map as a
        JPEG, C262 for what videos do not have.
        """
        given, fields = source.manifest, source.manifest.fields
        if self.encode == "jpeg" and given.label_maps:
            where = f"pack.encode = jpeg, label map {', '.join(given.label_maps)}"
            fix = "set pack.encode=png, raw or keep; input.labels=[] if it is a picture"
            raise ConfigError(177, where, "a JPEG changes class numbers", fix)
        asked = (self.resize, self.max_side, self.size, self.color)
        changes = self.encode in ("jpeg", "png") or self.bit_depth == 16 or self.layout == "hwc"
        changes = changes or any(value is not None for value in asked)
        kinds = {name: own.kind for name, own in fields.items()}
        self.images, self.first_sound = {}, None
        self.sounds = [name for name, kind in kinds.items() if kind == "audio"]
        self.given = {name: own for name, own in fields.items() if own.kind == "video"}
        self.videos = {}
        for name, own in self.given.items():
            _, height, width, channels = own.shape
            size: tuple[int | None, int | None] = (None, None)
            if self.encode not in ("jpeg", "png") and height and width:
                size = self.scaled_size((height, width))
            channels = COLORS.get(self.color or "", channels)
            self.videos[name] = replace(own, shape=(None, *size, channels))
        for name, own in fields.items():
            is_changed = changes or (self.encode == "raw" and own.interleaved)
            if own.encoding == "image" or (own.channels is not None and is_changed):
                self.images[name] = self._prepared_field(own)
        needs = ("frame_rate", self.videos, "a video"), ("rate", self.sounds, "a sound")
        for key, names, kind in needs:
            value = getattr(self, key)
            if value is not None and not names:
                what = f"no field of the input is {kind}"
                raise ConfigError(142, f"pack.{key} = {value}", what, "leave it out")
        if self.videos and self.bit_depth is not None:
            where = f"pack.bit_depth = {self.bit_depth}"
            raise ConfigError(262, where, "frames of videos have 8 bits", "leave it out")
        if not self.images and not self.videos and (changes or self.bit_depth is not None):
            where = ", ".join(f"pack.{name} = {value}" for name, value in self.options.items())
            raise ConfigError(142, where, "no field of the input is an image", "leave it out")
        self.moving = {name: kind for name, kind in kinds.items() if kind in ("boxes", "points")}
        # The images of a store are not sampled.
        self.sampled = [name for name in given.gray if self.color is None and not given.options]
        shapes = [own.shape[1:] for own in (*self.images.values(), *self.videos.values())]
        if self.sounds or (self.encode == "raw" and any(None in shape for shape in shapes)):
            self._measure_first(source)
        stored = {name: self._stored_field(own) for name, own in self.images.items()}
        return {**fields, **stored, **self.videos}

    def _prepared_field(self, field: Field) -> Field:
        """Return the prepared field, without height and width if only an image can tell them."""
        is_map = field.kind == "labels"
        kind = "labels" if is_map else ""
        channels = field.channels
        if self.color is not None and not is_map:
            channels = COLORS[self.color]
        if self.encode in ("jpeg", "png") or (self.encode == "keep" and field.encoding == "image"):
            return Field("uint8", (channels, None, None), "image", kind)
        shape = self.size or field.shape[1:]
        if self.size is None and field.interleaved:
            shape = field.shape[:2]
        if None not in shape:
            shape = self.scaled_size((int(shape[0] or 0), int(shape[1] or 0)))
        dtype = "uint16" if self.bit_depth == 16 and not is_map else "uint8"
        return Field(dtype, (channels, *shape), kind=kind)

    def _measure_first(self, source: RecordInput) -> None:
        errors: list[DataError] = []
        for item in range(min(source.manifest.num_records, TRIES)):
            try:
                if prepared(source, self._measure, item, item + 1).keys:
                    return
            except DataError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        what = f"no record in its first {TRIES} items"
        raise DataError(140, source.manifest.source, what, "set pack.size=[height,width]")

    def _measure(self, chunk: Chunk) -> Chunk:
        for name in self.sounds[:1]:
            self.first_sound = _sound_header(chunk.records[name][0], f"{chunk.keys[0]}: {name}")
        if self.encode == "raw":
            for name, own in self.images.items():
                planes = self._pixels(chunk, name, 0).transpose(2, 0, 1)
                self.images[name] = replace(own, dtype=str(planes.dtype), shape=planes.shape)
            for name, own in self.videos.items():
                frame = next(self._frames(chunk.records[name][0], chunk.keys[0], name))
                self.videos[name] = replace(own, shape=(None, *frame.shape))
        return chunk

    def _stored_field(self, field: Field) -> Field:
        """Return the field as it is stored. In this class the shape of pixels is [C, H, W]."""
        if field.encoding != "raw" or self.layout == "chw":
            return field
        return replace(field, shape=(*field.shape[1:], field.shape[0]))

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the prepared records. The given ones do not change.

        DataError D106 for an image that cannot be read, D107 for one of another shape, D122 for one
        in color if a sample of the others is gray.
        """
        records = dict(chunk.records)
        for name in self.images:
            records[name] = self._images(chunk, name)
        for name in self.sounds:
            records[name] = self._sounds(chunk, name)
        for name in self.videos:
            records[name] = self._videos(chunk, name)
        is_scaled = (self.resize, self.max_side, self.size) != (None, None, None)
        if is_scaled and self.images and self.moving:
            first = next(iter(self.images))
            sizes: list[tuple[int, ...]] = []  # of the first image of each record
            for value, key in zip(chunk.records[first], chunk.keys, strict=True):
                if isinstance(value, np.ndarray):
                    sizes.append(value.shape[1:] if value.shape[0] in (1, 3) else value.shape[:2])
                    continue
                try:
                    sizes.append(accepted_header(value, self.max_pixels, deepest=16).size)
                except BadImage as error:
                    raise _bad(key, first, error) from error
            for name, kind in self.moving.items():
                move = moved_boxes if kind == "boxes" else moved_points
                values: Any = chunk.records[name]
                moved: list[np.ndarray] = []
                for rows, size in zip(values, sizes, strict=True):
                    flat = torch.from_numpy(rows.reshape(-1, rows.shape[-1]))
                    windows = torch.tensor([[*self._window(size), 0]]).expand(len(flat), -1)
                    scaled = move(flat, windows, self.scaled_size(size))
                    moved.append(scaled.numpy().reshape(rows.shape))
                records[name] = np.stack(moved) if isinstance(values, np.ndarray) else moved
        return Chunk(records, chunk.keys)

    def _images(self, chunk: Chunk, name: str) -> Any:
        """Return all images of a field. DataError D107 if the shapes of arrays differ."""
        values, target = chunk.records[name], self.images[name]
        numbers = range(len(chunk.keys))
        if self.encode == "keep" and target.encoding == "image":
            # A JPEG is decoded at 1/8, which reads the whole file.
            for data, key in zip(values, chunk.keys, strict=True):
                try:
                    if target.kind == "labels":
                        decoding.decode_labels(data, self.max_pixels)
                        continue
                    decoding.decode(data, target.shape[0] or 3, self.max_pixels, (1, 1))
                    if name in self.sampled:
                        decoding.refuse_colors(data, key, self.max_pixels)
                except BadImage as error:
                    raise _bad(key, name, error) from error
            return values
        if target.encoding == "image":
            pixels = (self._pixels(chunk, name, number) for number in numbers)
            return [self.encoded(planes.transpose(2, 0, 1)) for planes in pixels]
        shape = (side or 0 for side in self._stored_field(target).shape)
        stored = np.empty((len(numbers), *shape), target.dtype)
        arrays = stored.transpose(0, 3, 1, 2) if self.layout == "hwc" else stored
        for number in numbers:
            image = self._pixels(chunk, name, number).transpose(2, 0, 1)
            if image.shape != target.shape:
                raise _bad_shape(chunk.keys[number], name, image.shape, target.shape)
            arrays[number] = image
        return stored

    def encoded(self, planes: np.ndarray) -> bytes:
        """Return pixels [C, H, W] as an image file: PNG if that is chosen, else JPEG."""
        if self.encode == "png":
            return decoding.encode_png(planes)
        return decoding.encode_jpeg(planes, self.quality or QUALITY)

    def _pixels(self, chunk: Chunk, name: str, number: int) -> np.ndarray:
        """Return an image, upright and scaled: uint8 or uint16 [h, w, C]."""
        value, target = chunk.records[name][number], self.images[name]
        channels = target.shape[0] or 3
        is_map = target.kind == "labels"
        full_size: tuple[int, ...] | None = None  # of a file that is decoded smaller
        try:
            if isinstance(value, np.ndarray):
                if value.shape[0] in (1, 3):  # planes, as in ``Field.channels``
                    value = value.transpose(1, 2, 0)
                image = convert(np.ascontiguousarray(value), channels)
            elif is_map:
                image = decoding.decode_labels(value, self.max_pixels)
            else:
                deepest = 8 if self.bit_depth is None else 16
                header = accepted_header(value, self.max_pixels, deepest=deepest)
                full_size = header.size
                if header.bit_depth == 16:
                    image = decoding.decode_deep(value, channels, self.max_pixels)
                    if self.bit_depth == 8:
                        image = ((image.astype(np.uint32) + 128) // 257).astype(np.uint8)
                else:  # no smaller than the result is to be
                    height, width = full_size
                    wanted = self.scaled_size(full_size)
                    _, _, *kept = self._window(full_size)
                    least = -(-height * wanted[0] // kept[0]), -(-width * wanted[1] // kept[1])
                    image = decoding.decode(value, channels, self.max_pixels, least)
                if name in self.sampled:
                    decoding.refuse_colors(value, chunk.keys[number], self.max_pixels)
        except BadImage as error:
            raise _bad(chunk.keys[number], name, error) from error
        return self.scaled(image, full_size or image.shape[:2], is_map)

    def _window(self, size: tuple[int, ...]) -> tuple[int, int, int, int]:
        if self.size is None:
            return 0, 0, size[0], size[1]
        windows = centered(torch.tensor([size[:2]]), (self.size[0], self.size[1]))
        top, left, height, width, _ = windows[0].tolist()
        return top, left, height, width

    def scaled_size(self, size: tuple[int, ...]) -> tuple[int, int]:
        """Return (height, width) of the result for an image of this size."""
        if self.size is not None:
            return self.size[0], self.size[1]
        factor = 1.0
        if self.resize is not None:
            factor = min(1.0, self.resize / min(size))
        elif self.max_side is not None:
            factor = min(1.0, self.max_side / max(size))
        return max(1, round(size[0] * factor)), max(1, round(size[1] * factor))

    def scaled(
        self, image: np.ndarray, full_size: tuple[int, ...], is_map: bool = False
    ) -> np.ndarray:
        """Cut and scale an image [H, W, C], which may be smaller than its ``full_size``."""
        top, left, height, width = self._window(image.shape[:2])
        image = image[top : top + height, left : left + width]
        size = self.scaled_size(full_size)
        if is_map:
            return scale_labels(image.transpose(2, 0, 1), size).transpose(1, 2, 0)
        if image.dtype == np.uint8:
            image = scale(image, size, antialias=True)
            return image * np.uint16(257) if self.bit_depth == 16 else image
        if image.shape[:2] == size:
            return image
        # the filter of ``framework.media.scale`` is for 8 bits
        pixels = torch.from_numpy(image.astype(np.float32)).permute(2, 0, 1)[None]
        deep = interpolate(pixels, size, mode="bilinear", antialias=True)[0].permute(1, 2, 0)
        return deep.round().clamp(0, 65535).numpy().astype(np.uint16)

    def _sounds(self, chunk: Chunk, name: str) -> list[Any]:
        """Return all sounds of a field, decoded to find damage. DataError D180, D181."""
        sounds: list[Any] = []
        for data, key in zip(chunk.records[name], chunk.keys, strict=True):
            where = f"{key}: {name}"
            header, first = _sound_header(data, where), self.first_sound
            if header.channels != first.channels:
                what = f"has {header.channels} channels, the first has {first.channels}"
                raise DataError(180, where, what, "pack files with as many channels")
            if self.rate is None and header.rate != first.rate:
                what = f"has {header.rate} samples per second, the first has {first.rate}"
                raise DataError(180, where, what, f"add pack.rate={first.rate}")
            if self.rate is None or self.rate == header.rate:
                sounds.append(data)
            else:
                sounds.append(np.frombuffer(resampled(data, self.rate), np.uint8))
        return sounds

    def _videos(self, chunk: Chunk, name: str) -> list[Any]:
        """Return the frames of all videos of a field. DataError D260, D107 for another size."""
        stored = self.videos[name]
        are_files = None in stored.shape[1:]
        is_kept = self.given[name] == stored and (self.encode == "keep" or not are_files)
        is_kept = is_kept and self.frame_rate is None  # else ``_frames`` refuses packed frames
        videos: list[Any] = []
        for data, key in zip(chunk.records[name], chunk.keys, strict=True):
            if is_kept and (not are_files or sound_video.holds_files(data)):
                videos.append(data)
                continue
            parts: list[bytes] = []
            total = 0
            for frame in self._frames(data, key, name):
                if are_files:
                    parts.append(self.encoded(frame.transpose(2, 0, 1)))
                elif frame.shape != stored.row_shape:
                    raise _bad_shape(key, name, frame.shape, stored.row_shape)
                else:
                    parts.append(frame.tobytes())
                total += len(parts[-1])
                if total > MOST_BYTES:
                    why = "its frames take 2 GiB: cut it, or set pack.frame_rate or pack.size"
                    raise _bad_video(key, name, why)
            videos.append(sound_video.joined_files(parts) if are_files else b"".join(parts))
        return videos

    def _frames(self, data: Any, key: str, name: str) -> Iterator[np.ndarray]:
        """Yield the prepared frames: uint8 [H, W, C]. DataError D260."""
        field, channels = self.given[name], self.videos[name].shape[3] or 3
        rate: Fraction | None = None
        if self.frame_rate is not None:
            rate = Fraction(str(self.frame_rate))
        try:
            are_frames = None not in field.shape[1:] or sound_video.holds_files(data)
            if not are_frames:
                frames: Any = sound_video.video_frames(data, rate, self.max_pixels)
            elif rate is not None:
                raise sound_video.BadVideo("packed frames have no times: leave pack.frame_rate out")
            else:
                frames = sound_video.frames_of(data, field)
            for frame in frames:
                pixels = frame
                if not isinstance(frame, np.ndarray):
                    pixels = decoding.decode(frame, field.shape[3] or 3, self.max_pixels)
                pixels = convert(pixels, channels)
                yield self.scaled(pixels, pixels.shape[:2])
        except (sound_video.BadVideo, sound_video.BadFrames, BadImage) as error:
            raise _bad_video(key, name, error) from error


def _bad(key: str, name: str, error: BadImage) -> DataError:
    return DataError(106, key, f"{name} is not a readable image ({error})", "correct or remove it")


def _bad_shape(key: str, name: str, shape: Sequence[int], first: Sequence[int | None]) -> DataError:
    sizes = ["x".join(map(str, sides)) for sides in (shape, first)]
    fix = "set pack.size=[height,width], or pack.encode=jpeg or png"
    return DataError(107, key, f"{name} is {sizes[0]}, the first {sizes[1]}", fix)


def _sound_header(data: Any, where: str) -> SoundHeader:
    try:
        return checked_header(data)
    except BadSound as error:
        what = f"not a readable WAV or FLAC file ({error})"
        raise DataError(181, where, what, "correct or remove it") from error


def _bad_video(key: str, name: str, why: object) -> DataError:
    return DataError(260, key, f"{name} is not a readable video ({why})", "correct or remove it")
