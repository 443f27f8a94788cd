"""``input.labels``, ``values`` and ``kinds``: what fields are, and what label maps' values mean."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, final

import numpy as np

from framework.contracts import records as contract
from framework.contracts.records import IGNORE, Chunk, Field, Manifest
from framework.errors import ConfigError, DataError
from framework.media import decode as decoding
from framework.media.decode import decode_labels, labels_header
from framework.media.header import MAX_PIXELS, BadImage, read_header
from framework.order.batches import spread
from framework.store.file_store import fits_kind
from framework.store.foreign import RAGGED, TakesKinds, check_present, checked_kinds

NUM_SAMPLES = 8  # items that a guess looks at
MOST_VALUES = 32  # different numbers in a gray label map; a photograph has some 200
PIXELS_PER_VALUE = 16  # at least, since a tiny picture has few values, too


@final
class MarkedInput(contract.InputTraits):
    """An input that knows which of its fields are label maps, and maps their values.

    Label maps become uint8 with one channel: PNGs stay PNGs, arrays become [1, H, W]. Without
    ``labels`` they are guessed: PNGs with a palette, or with few gray values, in each of some
    records, and only beside another image field. ``values`` has a new value (0 to 255, or
    "ignore") per value; None: no change. ConfigError C179 for what does not fit.
    """

    def __init__(
        self,
        source: contract.RecordInput,
        labels: Any,
        values: Mapping[int, int | str] | None,
        max_pixels: int = MAX_PIXELS,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        is_list = isinstance(labels, list | tuple) and all(isinstance(n, str) for n in labels)
        if labels is not None and not is_list:
            fix = "give input.labels=[mask], say"
            raise ConfigError(179, f"input.labels = {labels}", "must be a list of fields", fix)
        self.source, self.max_pixels = source, max_pixels
        self.own_code = contract.code_of(source)
        self.kinds = checked_kinds(kinds)
        if isinstance(source, TakesKinds):
            source.kinds = self.kinds
        self.given: Sequence[str] | None = labels
        self.values: dict[Any, Any] | None = None
        if values is None:
            return
        mapped: dict[Any, Any] = {}
        if isinstance(values, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            mapped = {old: IGNORE if new == "ignore" else new for old, new in values.items()}
        is_whole = all(type(number) is int for pair in mapped.items() for number in pair)
        if not mapped or not is_whole or not all(0 <= new <= 255 for new in mapped.values()):
            fix = "give 'input.values={0: 0, 128: 1, 255: ignore}', say: "
            fix += "new values 0 to 255, or ignore, which is 255"
            raise ConfigError(179, f"input.values = {values}", "must map numbers to numbers", fix)
        self.values = mapped

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The fields that are label maps. ConfigError C179 if one cannot be."""
        fields = self.source.manifest.fields
        names = self.given
        if names is None:
            names = tuple(dict.fromkeys((*self.source.manifest.label_maps, *self._guessed)))
        for name in names:
            where = f"input.labels = {name}"
            if name not in fields:
                fix = f"its fields are {', '.join(fields)}"
                raise ConfigError(179, where, "is not a field of the input", fix)
            field = fields[name]
            is_integer = np.dtype(field.dtype).kind in "biu"
            if field.encoding == "raw" and (not is_integer or _plane(field.shape) is None):
                what = f"is {field.dtype} {list(field.shape)}, not an integer for each pixel"
                fix = "give arrays of integers, [H, W] or [1, H, W], or PNGs"
                raise ConfigError(179, where, what, fix)
        if self.values is not None and not names:
            where = f"input.values = {dict(self.values)}"
            fix = "name the label maps: input.labels=[mask]"
            raise ConfigError(179, where, "no field is a label map", fix)
        return tuple(names)

    @cached_property
    def _guessed(self) -> tuple[str, ...]:
        fields = self.source.manifest.fields
        images = [name for name, field in fields.items() if field.kind != "raw"]
        encoded = [name for name, field in fields.items() if field.encoding == "image"]
        guessed: list[str] = []
        for name in encoded if len(images) > 1 else ():
            files = [data for part in self._samples for data in part[name]]
            if files and all(map(_looks_like_labels, files)):
                guessed.append(name)
        return tuple(guessed) if len(guessed) < len(images) else ()

    @cached_property
    def _samples(self) -> list[contract.Records]:
        """Records of some evenly spread items. Packing reports those that cannot be read."""
        num_items = self.source.manifest.num_records
        samples: list[contract.Records] = []
        for item in spread(num_items, min(NUM_SAMPLES, num_items)).tolist():
            with suppress(DataError):
                samples.append(self.source.read(item, item + 1).records)
        return samples

    @cached_property
    def notes(self) -> tuple[str, ...]:
        """Notes of the input, guessed fields, and values that do not mean what they seem to."""
        lines: list[str] = []
        if self.given is None and self._guessed:
            names = ",".join(self._guessed)
            what = "PNGs with a palette or few gray values, taken for label maps: their numbers are"
            what += " kept, and scaled to the nearest pixel; say so with"
            fix = f"'input.labels=[{names}]', or input.labels=[] if they are pictures"
            lines.append(f"{names}: {what} {fix}")
        for name in self.labels if self.values is None else ():
            present: set[int] = set()
            for value in (value for records in self._samples for value in records[name]):
                with suppress(BadImage):
                    numbers = value
                    if not isinstance(value, np.ndarray):
                        numbers = decode_labels(value, self.max_pixels)
                    present |= set(np.unique(numbers).tolist())
            if present == {0, 255}:
                what = "holds only 0 and 255, and 255 means 'no class'; if it is a class,"
                lines.append(f"{name} {what} add 'input.values={{0: 0, 255: 1}}'")
        return (*contract.notes_of(self.source), *lines)

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @cached_property
    def _manifest(self) -> Manifest:
        inputs = self.source.manifest
        check_present(self.kinds, inputs.fields)
        fields: dict[str, Field] = {}
        for name, field in inputs.fields.items():
            kind = self.kinds.get(name)
            fields[name] = field
            if kind is not None:
                wanted = field if kind == RAGGED else replace(field, kind=kind)
                if (kind == RAGGED and field.encoding != "ragged") or not fits_kind(wanted):
                    what = f"is {field.dtype} {list(field.shape)}, which cannot be {kind}"
                    fix = "correct input.kinds, or pack it with input=function"
                    raise ConfigError(179, f"input.kinds.{name} = {kind}", what, fix)
                fields[name] = wanted
            elif name not in self.labels and field.kind == "labels":
                fields[name] = replace(field, kind="")
            elif name in self.labels and field.encoding == "image":
                fields[name] = Field("uint8", (1, None, None), "image", "labels")
            elif name in self.labels:
                shape = (1, *(_plane(field.shape) or (0, 0)))
                fields[name] = Field("uint8", shape, "raw", "labels")
        options = dict(inputs.options)
        if self.values is not None:
            options["values"] = {str(old): new for old, new in self.values.items()}
        return replace(inputs, fields=fields, options=options)

    def read(self, start: int, stop: int) -> Chunk:
        """Return the records of items ``start`` to ``stop``.

        DataError D170 for a value that ``values`` does not map, or outside 0..255, D171 for an
        image that cannot be a label map, D172 for a map of another size than its record's images.
        """
        chunk = self.source.read(start, stop)
        if not self.labels or not chunk.keys:
            return chunk
        records = dict(chunk.records)
        for name in self.labels:
            values = chunk.records[name]
            maps: list[Any] = []  # as they are stored: a PNG's bytes, or uint8 [1, H, W]
            for value, key in zip(values, chunk.keys, strict=True):
                where = f"{key}: {name}"
                try:
                    if isinstance(value, np.ndarray):
                        planes = value.reshape(1, *(_plane(value.shape) or ()))
                        maps.append(self._mapped(planes, where))
                    elif self.values is None:
                        labels_header(value, self.max_pixels)
                        maps.append(value)
                    else:
                        numbers = decode_labels(value, self.max_pixels, deepest=16)
                        planes = numbers.transpose(2, 0, 1)
                        maps.append(decoding.encode_png(self._mapped(planes, where)))
                except decoding.BadLabels as error:
                    fix = "convert it, or correct input.labels"
                    raise DataError(171, where, f"is not a label map: {error}", fix) from error
                except BadImage as error:
                    what = f"not a readable image ({error})"
                    raise DataError(106, where, what, "correct or remove it") from error
            records[name] = np.stack(maps) if isinstance(values, np.ndarray) else maps
        fields = self.manifest.fields
        images = [name for name, field in fields.items() if field.kind == "image"]
        for number, key in enumerate(chunk.keys if images else ()):
            sizes: dict[str, str] = {}
            with suppress(BadImage):  # preparing the images says what is wrong with them
                for name in (*images, *self.labels):
                    value = records[name][number]
                    if not isinstance(value, np.ndarray):
                        size = read_header(value).size
                    else:
                        size = value.shape[:2] if fields[name].interleaved else value.shape[1:]
                    sizes[name] = f"{size[0]} x {size[1]}"
            for name in self.labels:
                if name in sizes and all(sizes[image] != sizes[name] for image in images):
                    what = f"{name} has {sizes[name]} pixels, {images[0]} {sizes[images[0]]}"
                    raise DataError(172, key, what, "give an image and its label map of one size")
        return Chunk(records, chunk.keys)

    def _mapped(self, numbers: np.ndarray, where: str) -> np.ndarray:
        present = np.unique(numbers).tolist()
        possible, fault = range(256), "not within 0..255"
        fix = "map its values with input.values"
        if self.values is not None:
            possible, fault = self.values, "which input.values does not map"
            fix = "add it to input.values"
        if unknown := [str(int(number)) for number in present if number not in possible]:
            more = ", ..." if len(unknown) > 10 else ""
            raise DataError(170, where, f"holds {', '.join(unknown[:10])}{more}, {fault}", fix)
        if self.values is None:
            return numbers.astype(np.uint8)
        places = np.searchsorted(np.array(present), numbers)
        return np.array([self.values[number] for number in present], np.uint8)[places]

    def name(self, index: int) -> str:
        return self.source.name(index)

    def item_files(self, index: int) -> Sequence[str]:
        return contract.input_traits(self.source).item_files(index)

    def range_files(self, start: int, stop: int) -> Sequence[str] | None:
        if self.labels:  # each map is mapped alone
            return None
        return contract.input_traits(self.source).range_files(start, stop)


def _plane(shape: Sequence[int | None]) -> tuple[int, int] | None:
    """Return (height, width) of an array of one number per pixel, or None for other shapes."""
    sides = [side or 0 for side in shape]
    if len(sides) == 3 and sides[0] == 1:
        del sides[0]
    elif len(sides) == 3 and sides[2] == 1:
        del sides[2]
    if len(sides) != 2 or min(sides) < 1:
        return None
    return sides[0], sides[1]


def _looks_like_labels(data: bytes) -> bool:
    with suppress(BadImage):
        labels_header(data)
        if data[25] == decoding.PALETTE:
            return True
        numbers = decode_labels(data)
        return len(np.unique(numbers)) <= min(MOST_VALUES, numbers.size // PIXELS_PER_VALUE)
    return False
