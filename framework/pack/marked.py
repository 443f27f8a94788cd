"""Which fields of an input are label maps, and what their values mean: ``input.labels`` and ``input.values``, for any input."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, final

import numpy as np

from framework.contracts.records import (
    IGNORE,
    Chunk,
    Field,
    Manifest,
    RecordInput,
    Records,
    notes_of,
)
from framework.errors import ConfigError, DataError
from framework.image.decode import MAX_PIXELS, encode_png, image_size
from framework.image.header import BadImage
from framework.image.label_map import BadLabels, decode_labels, labels_header
from framework.order import spread

NUM_SAMPLES = 8  # items that are looked at before a guess
MOST_VALUES = (
    32  # different numbers of a gray PNG that is taken for a label map; a photograph has some 200
)
PIXELS_PER_VALUE = 16  # a tiny picture has few values, too
BINARY = {0, 255}


@final
class MarkedInput:
    """An input that knows which of its fields are label maps, and maps their values.

    Label maps become uint8 with one channel: PNGs stay PNGs, arrays become [1, H, W]. Without ``labels`` they are guessed: PNGs that have
    a palette, or one gray channel of few values, in each of some records; only beside another image field.

    Args:
        source: The input.
        labels: The fields that are label maps; None: guess.
        values: A new value (0 to 255, or "ignore") for each value of the label maps; None: they are kept.
        max_pixels: The most pixels of a label map.

    Raises:
        ConfigError: C179: ``labels`` or ``values`` do not fit.

    """

    def __init__(
        self,
        source: RecordInput,
        labels: Any,
        values: Mapping[int, int | str] | None,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if labels is not None and not (
            isinstance(labels, list | tuple) and all(isinstance(name, str) for name in labels)
        ):
            raise ConfigError(
                179,
                f"input.labels = {labels}",
                "is no list of fields",
                "give input.labels=[mask], say",
            )
        self.source, self.max_pixels = source, max_pixels
        self.given: Sequence[str] | None = labels
        self.values = None if values is None else _checked_values(values)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The fields that are label maps. ConfigError C179 where one cannot be."""
        if self.given is None:
            names = tuple(dict.fromkeys((*self.source.manifest.label_maps, *self._guessed)))
        else:
            names = tuple(self.given)
        for name in names:
            _check_field(name, self.source.manifest.fields)
        if self.values is not None and not names:
            fix = "name the label maps: input.labels=[mask]"
            raise ConfigError(
                179, f"input.values = {dict(self.values)}", "no field is a label map", fix
            )
        return names

    @cached_property
    def _samples(self) -> list[Records]:
        """The records of some items, evenly spread. An item that cannot be read says so when it is packed."""
        num_items, samples = self.source.manifest.num_records, list[Records]()
        for item in spread(num_items, min(NUM_SAMPLES, num_items)).tolist():
            with suppress(DataError):
                samples.append(self.source.read(item, item + 1).records)
        return samples

    @cached_property
    def _guessed(self) -> tuple[str, ...]:
        fields = self.source.manifest.fields
        images = [name for name, field in fields.items() if field.kind != "raw"]
        encoded = [name for name, field in fields.items() if field.encoding == "image"]
        if len(images) < 2 or not encoded:
            return ()
        guessed = tuple(name for name in encoded if self._looks_like_labels(name))
        return guessed if len(guessed) < len(images) else ()

    def _looks_like_labels(self, name: str) -> bool:
        files = [data for records in self._samples for data in records[name]]
        return bool(files) and all(_is_palette(data) or _has_few_values(data) for data in files)

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """What the input says, which fields were guessed, and values that mean something else than they seem to."""
        lines: list[str] = []
        if self.given is None and self._guessed:
            names = ",".join(self._guessed)
            lines.append(
                f"{names}: PNGs with a palette or few gray values, taken for label maps: their numbers are kept, and scaled to the "
                f"nearest pixel; say so with 'input.labels=[{names}]', or input.labels=[] if they are pictures"
            )
        if self.values is None:
            lines += [
                f"{name} holds only 0 and 255, and 255 means 'no class'; if it is a class, add 'input.values={{0: 0, 255: 1}}'"
                for name in self.labels
                if self._sampled_values(name) == BINARY
            ]
        return (*notes_of(self.source), *lines)

    def _sampled_values(self, name: str) -> set[int]:
        found: set[int] = set()
        for records in self._samples:
            for value in records[name]:
                with suppress(BadImage):
                    found |= set(np.unique(self._numbers(value)).tolist())
        return found

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @cached_property
    def _manifest(self) -> Manifest:
        inputs = self.source.manifest
        fields = {name: self._field(name, field) for name, field in inputs.fields.items()}
        options = dict(inputs.options)
        if self.values is not None:
            options["values"] = {str(old): new for old, new in self.values.items()}
        return replace(inputs, fields=fields, options=options)

    def _field(self, name: str, field: Field) -> Field:
        if name not in self.labels:
            return replace(field, kind="") if field.kind == "labels" else field
        if field.encoding == "image":
            return Field("uint8", (1, None, None), "image", "labels")
        height, width = _plane(field.shape) or (0, 0)
        return Field("uint8", (1, height, width), "raw", "labels")

    def read(self, start: int, stop: int) -> Chunk:
        """Items ``start``..``stop``.

        Raises:
            DataError: D170: a value that ``values`` does not map, or that is none of 0..255. D171: an image that cannot be a label map.
                D172: a label map whose size is no image's of its record. Others as the input has them.

        """
        chunk = self.source.read(start, stop)
        if not self.labels or not chunk.keys:
            return chunk
        maps = {name: self._maps(name, chunk) for name in self.labels}
        records = {name: maps.get(name, values) for name, values in chunk.records.items()}
        self._check_sizes(records, chunk.keys)
        return Chunk(records, chunk.keys)

    def _maps(self, name: str, chunk: Chunk) -> Any:
        values = chunk.records[name]
        found = [
            self._map(value, f"{key}: {name}")
            for value, key in zip(values, chunk.keys, strict=True)
        ]
        return np.stack(found) if isinstance(values, np.ndarray) else found

    def _map(self, value: Any, where: str) -> Any:
        """One label map as it is stored: a PNG's bytes, or uint8 [1, H, W]."""
        try:
            if isinstance(value, np.ndarray):
                return self._mapped(value.reshape(1, *(_plane(value.shape) or ())), where)
            if self.values is None:
                labels_header(value, self.max_pixels)
                return value
            return encode_png(self._mapped(self._numbers(value).transpose(2, 0, 1), where))
        except BadLabels as error:
            raise DataError(
                171, where, f"is no label map: {error}", "convert it, or correct input.labels"
            ) from error
        except BadImage as error:
            raise DataError(
                106, where, f"not a readable image ({error})", "mend or remove it"
            ) from error

    def _numbers(self, value: Any) -> np.ndarray:
        if isinstance(value, np.ndarray):
            return value
        return decode_labels(value, self.max_pixels, deepest=8 if self.values is None else 16)

    def _mapped(self, numbers: np.ndarray, where: str) -> np.ndarray:
        """The numbers as uint8, through ``values``."""
        present = np.unique(numbers).tolist()
        possible = range(256) if self.values is None else self.values
        strange = [number for number in present if number not in possible]
        if strange:
            listed = ", ".join(str(int(number)) for number in strange[:10]) + (
                ", ..." if len(strange) > 10 else ""
            )
            if self.values is None:
                raise DataError(
                    170,
                    where,
                    f"holds {listed}, not within 0..255",
                    "map its values with input.values",
                )
            raise DataError(
                170,
                where,
                f"holds {listed}, which input.values does not map",
                "add it to input.values",
            )
        if self.values is None:
            return numbers.astype(np.uint8)
        places = np.searchsorted(np.array(present), numbers)
        return np.array([self.values[number] for number in present], np.uint8)[places]

    def _check_sizes(self, records: Records, keys: Sequence[str]) -> None:
        fields = self.manifest.fields
        images = [name for name, field in fields.items() if field.kind == "image"]
        for number, key in enumerate(keys):
            with suppress(BadImage):  # preparing the images says what is wrong with one
                sizes = {
                    name: _size(records[name][number], fields[name])
                    for name in (*images, *self.labels)
                }
                for name in self.labels:
                    if images and all(sizes[image] != sizes[name] for image in images):
                        what = f"{name} has {_words(sizes[name])} pixels, {images[0]} {_words(sizes[images[0]])}"
                        raise DataError(
                            172, key, what, "give an image and its label map of one size"
                        )

    def name(self, index: int) -> str:
        return self.source.name(index)


def marked(source: RecordInput, block: Mapping[str, Any], max_pixels: Any) -> MarkedInput:
    """Return ``source`` with what an input's ``block`` says of label maps. ``max_pixels``: of ``pack:``; None: the usual."""
    values, limit = block.get("values"), max_pixels if isinstance(max_pixels, int) else MAX_PIXELS
    if values is not None and not isinstance(values, Mapping):
        raise _not_values(values)
    return MarkedInput(source, block.get("labels"), values, limit)


def _checked_values(values: Mapping[Any, Any]) -> dict[int, int]:
    """Old value -> new value, ``IGNORE`` for "ignore". ConfigError C179."""
    found: dict[int, int] = {}
    for old, new in values.items():
        number = IGNORE if new == "ignore" else new
        if type(old) is not int or type(number) is not int or not 0 <= number <= 255:
            raise _not_values(dict(values))
        found[old] = number
    if not found:
        raise _not_values(dict(values))
    return found


def _not_values(values: Any) -> ConfigError:
    fix = "give 'input.values={0: 0, 128: 1, 255: ignore}', say: new values 0 to 255, or ignore, which is 255"
    return ConfigError(179, f"input.values = {values}", "must map numbers to numbers", fix)


def _check_field(name: str, fields: Mapping[str, Field]) -> None:
    field = fields.get(name)
    if field is None:
        raise ConfigError(
            179,
            f"input.labels = {name}",
            "is no field of the input",
            f"its fields are {', '.join(fields)}",
        )
    if field.encoding == "raw" and (
        np.dtype(field.dtype).kind not in "biu" or _plane(field.shape) is None
    ):
        what = f"is {field.dtype} {list(field.shape)}, not an integer for each pixel"
        raise ConfigError(
            179,
            f"input.labels = {name}",
            what,
            "give arrays of integers, [H, W] or [1, H, W], or PNGs",
        )


def _plane(shape: Sequence[int | None]) -> tuple[int, int] | None:
    """(height, width) of an array of one number per pixel; None for other shapes."""
    sides = [side or 0 for side in shape]
    if len(sides) == 3 and 1 in (sides[0], sides[2]):
        sides.pop(0 if sides[0] == 1 else 2)
    return (sides[0], sides[1]) if len(sides) == 2 and min(sides) >= 1 else None


def _size(value: Any, field: Field) -> tuple[int, int]:
    """(height, width) of an image or a label map."""
    if not isinstance(value, np.ndarray):
        return image_size(value)
    return value.shape[:2] if field.interleaved else value.shape[1:]


def _words(size: tuple[int, int]) -> str:
    return f"{size[0]} x {size[1]}"


def _is_palette(data: bytes) -> bool:
    try:
        labels_header(data)
    except BadImage:
        return False
    return data[25] == 3


def _has_few_values(data: bytes) -> bool:
    try:
        numbers = decode_labels(data)
    except BadImage:
        return False
    return len(np.unique(numbers)) <= min(MOST_VALUES, numbers.size // PIXELS_PER_VALUE)
