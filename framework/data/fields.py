"""What becomes of each field of a record: which a transform changes, and how they are collated.

Classes of validation data are numbered as the training data numbers them.
"""

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from threading import Lock
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from framework.contracts import records as contract
from framework.contracts.batch import Batch, mapped
from framework.contracts.data import Content, Source, SourceContext, TakesArrays, Transform
from framework.contracts.records import LABEL, Field, Manifest, Ragged, RecordStore
from framework.errors import ConfigError, DataError, listed
from framework.media.scale import moved_boxes, moved_points
from framework.media.sound_video import BadSound, read_sound, sound_header
from framework.store.gather import padded

PICTURES = ("image", "labels")  # kinds of fields that boxes and points follow
NO_RECORD = -1  # the number of a class that training lacks and validation has no record of
LENGTH = "_length"  # the ending of the field that says how many rows of a padded array are real


def is_cut(field: Field, transform: Transform) -> bool:
    """Return whether a field needs more than gathering, as pixels in planes do if any changes."""
    if field.encoding == "image" or field.interleaved:
        return True
    resizes = transform.size is not None or transform.num_draws > 0
    return field.channels is not None and (resizes or transform.function is not None)


def cut_fields(manifest: Manifest, transform: Transform) -> dict[str, Field]:
    """Return the fields that need more than gathering: images, or the arrays of a function."""
    fields = manifest.fields.items()
    cut = {name: field for name, field in fields if is_cut(field, transform)}
    function = transform.function
    if not cut and isinstance(function, TakesArrays) and function.takes_arrays:
        return {name: field for name, field in fields if field.encoding == "raw" and field.shape}
    return cut


def followers(manifest: Manifest) -> dict[str, Field]:
    """Return the boxes and points of a store that has images."""
    fields = manifest.fields.items()
    if not any(field.kind in PICTURES for _, field in fields):
        return {}
    return {name: field for name, field in fields if field.kind in ("boxes", "points")}


def check_fields(manifest: Manifest, context: SourceContext) -> None:
    """Check that the fields can be put into a batch. ConfigError C199, C262."""
    transform, function = context.transform, context.transform.function
    fields = manifest.fields.items()
    kinds = {field.kind for _, field in fields}
    videos = ", ".join(name for name, field in fields if field.kind == "video")
    moving = ", ".join(followers(manifest))
    if context.collate not in ("pad", "nested", "list"):
        where = f"collate = {context.collate}"
        raise ConfigError(199, where, "must be pad, nested or list", "choose one of them")
    if transform.scales:
        fix = "make it a part of transform=compose, with a crop behind it"
        raise ConfigError(199, "transform", "leaves images of several sizes", fix)
    for name, field in fields:
        added = length_name(name, field, context.collate)
        if added in manifest.fields:
            what = f"the lengths of {name} would replace the field {added}"
            raise ConfigError(199, "collate = pad", what, "rename the field, or set collate=list")
    if videos and function is not None:
        what = f"a function changes images, and cannot change {videos}"
        raise ConfigError(262, "transform", what, "choose a transform without a function")
    if videos and not transform.num_frames:
        fix = "choose transform=video_window, or make it a part of transform=compose"
        raise ConfigError(262, "transform", f"does not say which frames of {videos} to take", fix)
    resizes = transform.size is not None or transform.num_draws > 0
    cut = cut_fields(manifest, transform)
    wanted = ""  # what the transform changes if the data has nothing of that kind
    if transform.samples:
        wanted = "" if "audio" in kinds else "sounds"
    elif transform.num_frames:
        wanted = "" if videos else "videos"
    elif resizes or function is not None:
        has_images = videos or any(is_cut(field, transform) for field in cut.values())
        wanted = "" if has_images or (cut and not resizes) else "images"
    if wanted:
        what, fix = f"changes {wanted}, and the data has none", "choose transform=none"
        for name, field in fields:
            is_wide = field.dtype == "uint16" or np.dtype(field.dtype).kind == "f"
            if field.encoding == "raw" and len(field.shape) == 3 and is_wide:
                what = f"cuts images of 8 bits, and cannot change {name} of {field.dtype}"
                fix = "choose transform=none and an augment=, or pack images of 8 bits"
        raise ConfigError(199, "transform", what, fix)
    if moving and function is not None:
        fix = "choose a transform without a function, or pack without these fields"
        raise ConfigError(199, "transform", f"a function cannot move {moving}", fix)


def moved(field: Field, values: Any, windows: Tensor, size: tuple[int, int] | None) -> Any:
    """Return boxes or points, ragged or not, after the change of their images."""
    rows, counts = values, torch.ones(len(windows), dtype=torch.int64)
    if isinstance(values, Ragged):
        rows, counts = values
    flat = rows.reshape(-1, field.shape[-1] or 0)
    per_row = flat.shape[0] // max(1, len(rows))  # points of a row
    windows = windows.repeat_interleave(counts * per_row, dim=0)
    move = moved_boxes if field.kind == "boxes" else moved_points
    moved = move(flat, windows, size).view(rows.shape)
    return values._replace(values=moved) if isinstance(values, Ragged) else moved


def samples_of(
    store: RecordStore, files: Ragged, indices: Tensor, transform: Transform, numbers: Tensor | None
) -> Any:
    """Decode the sounds of the records at ``indices``: whole, or a window of each.

    Return float32 [B, samples] or [B, samples, channels] for windows, with zeros behind shorter
    sounds; else ``Ragged`` with rows of samples. ``numbers`` are the transform's draws. DataError
    D181 for a file that cannot be decoded, D180 for another number of channels.
    """
    arrays, most = files.arrays(), transform.samples
    starts, counts = [0] * len(arrays), [None] * len(arrays)
    sounds: list[np.ndarray] = []
    number = 0
    try:
        if most:
            lengths: list[int] = []
            for number, data in enumerate(arrays):  # noqa: B007  # for the error
                lengths.append(sound_header(data).num_frames)
            starts = transform.starts(torch.tensor(lengths, dtype=torch.int64), numbers).tolist()
            pairs = zip(lengths, starts, strict=True)
            counts = [min(most, length - start) for length, start in pairs]
        for number, data in enumerate(arrays):
            sounds.append(read_sound(data, starts[number], counts[number]))
    except BadSound as error:
        what = f"not a readable WAV or FLAC file ({error})"
        raise DataError(181, store.name(int(indices[number])), what, "pack it again") from error
    for index, sound in zip(indices.tolist(), sounds, strict=True):
        if sound.shape[1:] != sounds[0].shape[1:]:
            what = f"its samples are {sound.shape[1:]}, another's {sounds[0].shape[1:]}"
            raise DataError(180, store.name(index), what, "pack files with as many channels")
    if not most:
        lengths_read = torch.tensor([len(sound) for sound in sounds], dtype=torch.int64)
        return Ragged(torch.from_numpy(np.concatenate(sounds)), lengths_read)
    windows = torch.zeros(len(sounds), most, *sounds[0].shape[1:])
    for window, sound in zip(windows, sounds, strict=True):
        window[: len(sound)] = torch.from_numpy(sound)
    return windows


def length_name(name: str, field: Field, way: str) -> str | None:
    """Return the name of the field that a ragged field adds to a batch, or None."""
    is_padded = field.encoding == "ragged" and field.kind not in contract.CARRIED
    return f"{name}{LENGTH}" if is_padded and way == "pad" else None


def collated(name: str, field: Field, ragged: Ragged, way: str) -> Batch:
    """Return what a batch has of a ragged field. UnicodeDecodeError for a text that is not UTF-8.

    Texts become a list of B ``str``, byte strings a list of B ``bytes``. Other arrays become, by
    ``way``:

    - ``pad``: [B, longest, *rest] with zeros behind, and ``<name>_length`` int64 [B];
    - ``nested``: ``Ragged``, which ``with_nested`` makes a nested tensor;
    - ``list``: a list of B tensors.
    """
    if field.kind == "text":
        return {name: [bytes(array).decode() for array in ragged.arrays()]}
    if field.kind == "bytes":
        return {name: [bytes(array) for array in ragged.arrays()]}
    if way == "pad":
        return {name: padded(ragged), f"{name}{LENGTH}": ragged.lengths}
    if way == "list":
        return {name: list(ragged.values.split(ragged.lengths.tolist()))}
    return {name: ragged}


def with_nested(batch: Batch) -> Batch:
    """Return the batch with nested tensors in the jagged layout. They share memory with it."""
    nested = dict(batch)
    for name, value in batch.items():
        if isinstance(value, Ragged):
            offsets = torch.cat([torch.zeros(1, dtype=torch.int64), value.lengths.cumsum(0)])
            nested[name] = torch.nested.nested_tensor_from_jagged(value.values, offsets)
    return nested


@final
@dataclass(eq=False)
class Padding:
    """Counts how much of padded arrays is padding. One thread adds, any thread takes."""

    _names: Mapping[str, str]  # of the lengths, by field
    _lock: Lock = dataclass_field(default_factory=Lock, init=False)
    _padding = _whole = 0

    def add(self, batch: Batch) -> None:
        for name, length_name in self._names.items():
            array = batch[name]
            row_size = math.prod(array.shape[2:])
            whole = array.shape[0] * array.shape[1] * row_size
            with self._lock:
                self._padding += whole - int(batch[length_name].sum()) * row_size
                self._whole += whole

    def take(self) -> Content:
        if not self._names:
            return {}
        with self._lock:
            counts = float(self._padding), float(self._whole)
            self._padding = self._whole = 0
        return {"padding": counts}


# ---- classes


def agree_on_classes(train: Manifest, val: Manifest, where: str = "data.val") -> list[int] | None:
    """Return the training data's number of each validation class, or None if labels already agree.

    Classes are matched by name. A store without classes is taken as it is, and so are stores whose
    labels are plain numbers: class "7" is label 7 in both. DataError D190, at ``where``, if
    validation has records of a class that training lacks.
    """
    names = list(val.classes)
    known = {name: number for number, name in enumerate(train.classes)}
    label = val.fields.get(LABEL)
    if names == list(known) or not names or not known or label is None:
        return None
    are_numbers = contract.is_numbered(names) and contract.is_numbered(train.classes)
    if are_numbers or np.dtype(label.dtype).kind not in "biu":
        return None
    counts = list(val.class_counts) or [1] * len(names)
    present = [name for name, count in zip(names, counts, strict=True) if count]
    if missing := [name for name in present if name not in known]:
        count = f"{len(missing)} classes ({listed(missing)})"
        if len(missing) == 1:
            count = f"the class {missing[0]}"
        what = (
            f"validation ({val.source}) has {count} that training ({train.source}) lacks; "
            f"training's classes: {listed(train.classes)}; validation's: {listed(names)}"
        )
        fix = "give both the same folders, or pack both with the same input.classes=[...]"
        raise DataError(190, where, what, fix)
    numbers = [known.get(name, NO_RECORD) for name in names]
    agree = all(new in (old, NO_RECORD) for old, new in enumerate(numbers))
    return None if agree else numbers


def with_agreed_classes(
    train: Manifest, val: Source, select: str | None = None, where: str = "data.val"
) -> Source:
    """Return ``val``, which messages call ``where``, with labels numbered as in ``train``.

    DataError D190 if ``val`` has a class that ``train`` lacks, ConfigError C204 if ``select`` names
    labels, whose numbers differ.
    """
    numbers = agree_on_classes(train, val.manifest, where)
    if numbers is None:
        return val
    if select is not None:
        tree = ast.parse(select.strip(), mode="eval")
        if "label" in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}:
            what = f"names labels, which data.train and {where} number otherwise"
            fix = "pack both with the same input.classes"
            raise ConfigError(204, f"select = {select[:200]}", what, fix)
    val.renumber(LabelMap(val.manifest.classes, numbers, train.classes, where))
    return val


@final
class LabelMap:
    """Renumbers the labels of batches. Labels that are no class stay.

    The classes of a source, ``names``, get new ``numbers``, which ``classes`` names.
    """

    def __init__(
        self, names: Sequence[str], numbers: Sequence[int], classes: Sequence[str], where: str
    ) -> None:
        self._numbers = list(numbers)
        self._classes = list(classes)
        pairs = enumerate(zip(names, numbers, strict=True))
        moved = [
            f"{name} {old} -> {new}" for old, (name, new) in pairs if new not in (old, NO_RECORD)
        ]
        self.note = f"{where} numbers its classes otherwise; its labels are mapped by name: "
        self.note += listed(moved)
        if absent := [name for name in classes if name not in set(names)]:
            self.note += f"; without a validation record: {listed(absent)}"

    def manifest(self, manifest: Manifest) -> Manifest:
        counts = [0] * len(self._classes) if manifest.class_counts else []
        for number, count in zip(self._numbers, manifest.class_counts, strict=False):
            if number != NO_RECORD:
                counts[number] = count
        return replace(manifest, classes=self._classes, class_counts=counts)

    def __call__(self, batch: Batch) -> Batch:
        labels: Any = batch[LABEL]
        if isinstance(labels, Tensor) and labels.is_nested:
            values: Any = labels
            new = self._renumbered(values.values())
            return {**batch, LABEL: torch.nested.nested_tensor_from_jagged(new, values.offsets())}
        return {**batch, LABEL: mapped(labels, self._renumbered)}

    def _renumbered(self, labels: Tensor) -> Tensor:
        table = torch.tensor(self._numbers, device=labels.device)
        old = labels.long()
        is_class = (old >= 0) & (old < len(table))
        new = torch.where(is_class, table[old.clamp(0, len(table) - 1)], old)
        if labels.dtype != torch.bool and max(self._numbers) <= torch.iinfo(labels.dtype).max:
            new = new.to(labels.dtype)
        return new
