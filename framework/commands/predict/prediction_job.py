"""Predict the records of an input part by part, so that a killed command continues.

The folder ``OUTPUT.parts`` holds the finished parts. The same command continues with the others,
and gives the same bytes: the parts and their batches do not depend on what was finished.
"""

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework import __version__
from framework.config.input_source import InputSource, ItemRange, as_pixels, class_name, in_images
from framework.config.resume import USED_PARTS
from framework.config.saved_run import Inferred, SavedRun, chosen_file
from framework.contracts import prediction as kinds
from framework.contracts.class_labels import class_labels, is_class_number
from framework.contracts.prediction import ClassProbabilities, PredictedTexts, Predictions
from framework.contracts.records import LABEL, Field, RecordInput
from framework.data.source import UNEVEN
from framework.errors import ConfigError, DataError, PacelineError, ResourceError
from framework.media.decode import encode_png
from framework.pack.jobs import file_sha256, hash_of, make_plan, stamps
from framework.pack.pack_store import list_bad
from framework.pack.packing import BadItem, Journal
from framework.store.folder_store import LONGEST_NAME
from framework.system import durable, safe_text
from framework.system.user_code import needed

Columns = dict[str, list[Any]]
Parts = Callable[[], Iterator[Columns]]  # yields the columns of each part, in order

TABLE, BOXES, MASKS, IMAGES = "table", "boxes", "mask", "image"
FORMS = {
    ClassProbabilities: TABLE,
    PredictedTexts: TABLE,
    kinds.PredictedNumbers: TABLE,
    kinds.PredictedBoxes: BOXES,
    kinds.PredictedMaps: MASKS,
    kinds.PredictedImages: IMAGES,
}
WORDS = {
    TABLE: ("rows of a table", "output=FILE.csv or FILE.parquet"),
    BOXES: ("boxes", "output=FILE.json"),
    MASKS: ("label maps", "output=FOLDER as=mask"),
    IMAGES: ("images", "output=FOLDER as=image"),
}
DIGITS = 6  # of a probability
TABLE_NAME = "predictions.csv"  # of a folder of pictures
FORMAT = 1  # of the parts
MOST_IN_MASK = 255


@dataclass(frozen=True)
class Prediction:
    """What to predict, and into what."""

    run: SavedRun
    source: RecordInput
    configured: dict[str, Any]  # the keys of the input: finished parts are kept if all are the same
    path: Path  # the file or folder that is made
    form: str  # table, boxes, mask or image
    top_k: int  # classes of each record in a table
    skip_bad: bool  # whether bad items are left out; otherwise the first one raises its error


class Predicted(NamedTuple):
    """The result: how many records, how many of them were predicted before, and what is bad."""

    num_records: int
    num_resumed: int
    bad: list[BadItem]


def predict(prediction: Prediction, on_progress: Callable[[int], None]) -> Predicted:
    """Predict what is missing, and make the output once all parts are there.

    ``on_progress`` gets the number of items since its last call.

    Raises:
        ConfigError: C351, C352, C354 to C356: the model, the data or the output do not fit.
        DataError: For a bad item, or if all are bad (D150). D107 for sizes that do not fit a batch.
        ResourceError: R101: the disk is full. R112: pyarrow is missing. R150: another process makes
            the same output.
    """
    path = prediction.path
    if prediction.form in (MASKS, IMAGES):
        check_folder(path)
    lock = path.with_name(f"{path.name}.lock")
    what = "is predicting into the same output"
    fix = "wait until it ends, stop it, or choose another output"
    with durable.locked(lock, lambda other: ResourceError(150, str(lock), f"{other} {what}", fix)):
        try:
            return _PredictionRun(prediction, on_progress).predict()
        except DataError as error:
            number, where, what, _ = error.args
            if number != UNEVEN:
                raise
            fix = "add batch_size=1, which predicts each in its own size, or give them one size"
            raise DataError(107, where, what, fix) from error


@final
class _PredictionRun:
    """One call of ``predict``, under its lock."""

    def __init__(self, prediction: Prediction, on_progress: Callable[[int], None]) -> None:
        self.prediction = prediction
        self.on_progress = on_progress
        self.run = prediction.run
        self.path = prediction.path
        self.journal = Journal(str(self.path), ".json")
        self.pictures = self.journal.folder / "pictures"
        self.is_text = prediction.form == TABLE and self.path.suffix != ".parquet"
        for place in (self.path, self.journal.folder, self.journal.files):
            durable.remove_leftovers(place)
            durable.tidied(place)
        durable.tidied(self.path.parent)
        inputs = prediction.source.manifest
        self.run.input_fields(inputs)  # which checks that the model can take them
        label = inputs.fields.get(LABEL)  # shown beside predictions if it is a class
        self.labels: dict[str, Field] = {}
        if label is not None and is_class_number(np.dtype(label.dtype).kind, label.shape):
            self.labels = {LABEL: label}
        self.ranges = self._begin()
        # Of the part that is being predicted
        self.columns: Columns = {}
        self.written: list[Path] = []  # pictures
        self.taken: set[str] = set()  # names of pictures, also of the parts before it
        self.num_named = 0  # parts whose names are in ``taken``

    def _begin(self) -> list[ItemRange]:
        """Return the parts of the journal if the same command has begun; else begin a new one."""
        run = self.run
        inputs = self.prediction.source.manifest
        used = {name: run.config[name] for name in (*USED_PARTS, "collate", "channels_last")}
        used["transform"] = run.config["data"].get("val_transform") or used["transform"]
        decides = {  # the bytes of the parts, besides the items
            "paceline": __version__,
            "format": FORMAT,
            "torch": str(torch.__version__),
            "device": run.device.type,
            "config": used,
            "weights": file_sha256(chosen_file(run.run_dir, run.weights)),
            "classes": list(run.classes),
            "batch_size": run.batch_size,
            "input": self.prediction.configured,
            "source": inputs.source,
            "num_items": inputs.num_records,
            "input_classes": list(inputs.classes),
            "form": self.prediction.form,
            "is_text": self.is_text,
            "top_k": self.prediction.top_k,
        }
        text = json.dumps(decides, sort_keys=True, default=str)
        facts = {"sha256": hashlib.sha256(text.encode()).hexdigest(), "run": str(run.run_dir)}
        begun = self.journal.begun() or {}
        if begun.get("facts") == facts:
            per_part = int(begun["items_per_part"])
        else:
            self.journal.remove()
            per_job = make_plan(self.prediction.source, None).items_per_job
            per_part = -(-per_job // run.batch_size) * run.batch_size  # whole batches
            self.journal.begin({"facts": facts, "items_per_part": per_part})
        end = inputs.num_records
        starts = enumerate(range(0, end, per_part))
        return [ItemRange(n, start, min(start + per_part, end)) for n, start in starts]

    def predict(self) -> Predicted:
        missing: list[ItemRange] = []
        resumed = 0
        for items in self.ranges:
            note: dict[str, Any] | None = None
            with suppress(OSError, ValueError):
                note = self._read(items)
            # kept if its items are unchanged, and none is bad that must not be
            is_good = note is not None and (self.prediction.skip_bad or not note["bad"])
            stamp = hash_of(stamps(self.prediction.source, items.start, items.stop))
            if note is None or not is_good or note["stamp"] != stamp:
                missing.append(items)
                continue
            resumed += note["num_records"]
            self.on_progress(items.stop - items.start)
        if missing:
            try:
                self._predict(missing)
            except PacelineError:
                # An error of the first part leaves no folder of parts.
                if len(missing) == len(self.ranges) and not self.journal.files.exists():
                    self.journal.remove()
                raise
        num_records = 0
        bad: list[BadItem] = []
        for items in self.ranges:
            note = self._read(items)
            num_records += note["num_records"]
            bad += [BadItem(*item) for item in note["bad"]]
        listing = list_bad(self.path, bad)
        if not num_records:
            self.journal.remove()
            what = f"all {len(bad)} items are bad, as {listing} says"
            if not bad:
                what = "its items hold no record"
            source = self.prediction.source.manifest.source
            raise DataError(150, source, what, "give something to predict")
        form = self.prediction.form
        if form == BOXES:
            write_coco(self.path, self._columns, self.run.classes)
        elif form in (MASKS, IMAGES):
            write_folder(self.path, self._columns, self.pictures)
        elif self.path.suffix == ".parquet":
            needed("pyarrow", "parquet")
            from framework.store.column_files import write_row_groups  # noqa: PLC0415  # an extra's

            with durable.open_durable(self.path) as file:
                write_row_groups(file, self._columns())
        else:
            names = next(self._notes())["names"]
            write_csv(self.path, names, (note["csv"] for note in self._notes()))
        durable.reach("predict.put")
        self.journal.remove()
        return Predicted(num_records, resumed, bad)

    def _read(self, items: ItemRange) -> dict[str, Any]:
        return json.loads(self.journal.file(items.number).read_text(encoding="ascii"))

    def _predict(self, missing: Sequence[ItemRange]) -> None:
        given = self.prediction.source
        stamps_before = {
            items.number: hash_of(stamps(given, items.start, items.stop)) for items in missing
        }
        source = self.run.input_source(given, missing, self.labels, self.prediction.skip_bad)
        waiting = list(missing)
        with closing(self.run.inferred(source)) as batches:
            for inferred in batches:
                while waiting[0].number != inferred.part.items.number:
                    items = waiting.pop(0)
                    self._note(source, items, stamps_before[items.number])
                self._add(inferred, waiting[0])
        for items in waiting:
            self._note(source, items, stamps_before[items.number])

    def _note(self, source: InputSource, items: ItemRange, stamp: str) -> None:
        """Write down a part that is complete, once its pictures are on the disk, and forget it."""
        read = source.parts.pop(items.number)
        for path in (*self.written, *{path.parent for path in self.written}):
            durable.sync(path)
        durable.reach("predict.part")
        num_records = len(self.columns.get("key", ()))
        note: dict[str, Any] = {"stamp": stamp, "num_records": num_records}
        note |= {"names": list(self.columns), "bad": sorted(read.bad)}
        if self.is_text:  # it is read and written ten times as fast as its columns
            note["csv"] = csv_rows(self.columns)
        else:
            note["columns"] = self.columns
        durable.write_text(self.journal.file(items.number), json.dumps(note))
        durable.reach("predict.noted")
        self.on_progress(items.stop - items.start - num_records)
        self.columns, self.written = {}, []

    def _add(self, inferred: Inferred, items: ItemRange) -> None:
        form = self.prediction.form
        if form in (MASKS, IMAGES):
            for before in self.ranges[self.num_named : items.number]:
                self.taken.update(self._read(before)["columns"].get("file", []))
            self.num_named = max(self.num_named, items.number)
        batch, read, predictions, places = inferred
        check_form(predictions, form, str(self.path))
        check_top_k(predictions, self.prediction.top_k)
        indices: Tensor = batch["index"].cpu()
        columns: Columns = {"key": [read.store.key(index) for index in indices.tolist()]}
        if self.labels:
            names = self.prediction.source.manifest.classes
            numbers = class_labels(batch[LABEL], 1).tolist()
            known = {number: class_name(names, number) for number in set(numbers)}
            columns[LABEL] = [known[number] for number in numbers]
        if form == TABLE:
            columns |= table_columns(predictions, self.run.classes, self.prediction.top_k)
        elif form == BOXES:
            boxes = in_images(predictions, places)
            height, width = batch[self.run.predicts.inputs[0]].shape[-2:]
            sizes = [(height, width)] * len(boxes)
            if places is not None:
                sizes = [place.size for place in places]
            columns["width"] = [size[1] for size in sizes]
            columns["height"] = [size[0] for size in sizes]
            columns["boxes"] = [box_rows(scored) for scored in boxes]
        else:
            if isinstance(predictions, kinds.PredictedImages):
                pixels = as_pixels(predictions)
            else:
                maps = in_images(predictions, places)
                largest = max((int(numbers.max(initial=0)) for numbers in maps), default=0)
                if largest > MOST_IN_MASK:
                    what = f"class {largest} does not fit into a mask of one byte per pixel"
                    raise ConfigError(357, "as = mask", what, "use a model of at most 256 classes")
                pixels = [numbers[:, :, None].astype(np.uint8) for numbers in maps]
            item_numbers = [read.item_numbers[index] for index in indices.tolist()]
            columns["file"] = []
            for picture, key, number in zip(pixels, columns["key"], item_numbers, strict=True):
                name = picture_name(key, number, self.taken)
                self.taken.add(name)
                path = self.pictures / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(encode_png(np.ascontiguousarray(picture.transpose(2, 0, 1))))
                self.written.append(path)
                columns["file"].append(name)
        for name, values in columns.items():
            self.columns.setdefault(name, []).extend(values)
        self.on_progress(len(indices))
        durable.reach("predict.batch")

    def _notes(self) -> Iterator[dict[str, Any]]:
        for items in self.ranges:
            note = self._read(items)
            if note["num_records"]:
                yield note

    def _columns(self) -> Iterator[Columns]:
        return (note["columns"] for note in self._notes())


def picture_name(key: str, number: int, taken: Container[str]) -> str:
    """Return the name of a record's picture: its key with another ending, or its item's number.

    A name that is taken gets the number, and then a second one. No key leads out of the folder.
    """
    path = Path(key)
    is_plain = path.name and not path.is_absolute() and ".." not in path.parts and "\0" not in key
    stem = f"{number:09d}"
    if is_plain and len(path.name.encode(errors="surrogateescape")) <= LONGEST_NAME:
        stem = str(path.with_suffix(""))
    more = (f"{stem}-{number}-{again}.png" for again in count(2))
    names = chain([f"{stem}.png", f"{stem}-{number}.png"], more)
    return next(name for name in names if name not in taken)


def check_form(predictions: Predictions, form: str, path: str) -> None:
    """Raise ConfigError C354 if the output cannot hold what the model predicts."""
    fitting = FORMS[type(predictions)]
    if fitting != form:
        what, fix = WORDS[fitting]
        raise ConfigError(354, f"output.path = {path}", f"cannot hold {what}", f"give {fix}")


def check_top_k(predictions: Predictions, top_k: int) -> None:
    """Raise ConfigError C355 if there are fewer classes, or none at all."""
    if isinstance(predictions, ClassProbabilities):
        num_classes = predictions.values.shape[1]
        if top_k > num_classes:
            what = f"the model has {num_classes} classes"
            raise ConfigError(355, f"top_k = {top_k}", what, "lower it")
    elif top_k != 1:
        raise ConfigError(355, f"top_k = {top_k}", "the model predicts no classes", "leave it out")


def table_columns(predictions: Predictions, classes: Sequence[str], top_k: int) -> Columns:
    """Return the columns of a table: classes and probabilities, texts, or numbers."""
    if isinstance(predictions, ClassProbabilities):
        best, numbers = predictions.values.topk(top_k, dim=1)
        shares = best.double().cpu().numpy().round(DIGITS)
        columns: Columns = {}
        for rank in range(top_k):
            ending = f"_{rank + 1}" * (rank > 0)
            columns[f"class{ending}"] = [class_name(classes, n) for n in numbers[:, rank].tolist()]
            columns[f"probability{ending}"] = shares[:, rank].tolist()
        return columns
    if isinstance(predictions, PredictedTexts):
        return {"text": list(predictions.values)}
    assert isinstance(predictions, kinds.PredictedNumbers)
    numbers = predictions.values.float().cpu().numpy().reshape(len(predictions.values), -1)
    if numbers.shape[1] == 1:
        return {"value": shortest(numbers[:, 0])}
    return {f"value_{n}": shortest(numbers[:, n]) for n in range(numbers.shape[1])}


def shortest(numbers: np.ndarray) -> list[float]:
    """Return float32 numbers whose text is the shortest that gives them back."""
    return [float(text) for text in numbers.astype(np.float32).astype(str)]


def box_rows(scored: kinds.ScoredBoxes) -> list[list[Any]]:
    """Return the boxes of a record, the best first: left, top, width, height, score, class."""
    boxes = scored.boxes.float()
    sizes = boxes[:, 2:] - boxes[:, :2]
    corners = torch.cat([boxes[:, :2], sizes], dim=1).double().numpy().round(2).tolist()
    scores = scored.scores.double().numpy().round(DIGITS).tolist()
    rows = zip(corners, scores, scored.labels.tolist(), strict=True)
    return [[*corner, score, label] for corner, score, label in rows]


def csv_rows(columns: Columns) -> str:
    """Return the rows of a table as CSV, without a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = zip(*columns.values(), strict=True)
    writer.writerows([safe_text.csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def write_csv(path: Path, names: Sequence[str], texts: Iterable[str]) -> None:
    """Write a table as CSV (UTF-8): the names of the columns, and the rows of each part as text."""
    with durable.open_durable(path) as file:
        for text in chain([csv_rows({name: [name] for name in names})], texts):
            # Keys may be names of files, which may be any bytes.
            file.write(text.encode(errors="surrogateescape"))


def write_coco(path: Path, parts: Parts, classes: Sequence[str]) -> None:
    """Write boxes as COCO has them, with a ``score``. Ids begin with 1."""
    labels = {box[5] for part in parts() for boxes in part["boxes"] for box in boxes}
    numbers = range(max(len(classes), max(labels, default=-1) + 1))
    categories = [{"id": n + 1, "name": class_name(classes, n)} for n in numbers]

    def images() -> Iterator[dict[str, Any]]:
        ids = count(1)
        for part in parts():
            for key, width, height in zip(part["key"], part["width"], part["height"], strict=True):
                yield {"id": next(ids), "file_name": key, "width": width, "height": height}

    def annotations() -> Iterator[dict[str, Any]]:
        ids = count(1)
        records = chain.from_iterable(part["boxes"] for part in parts())
        for image_id, boxes in enumerate(records, 1):
            for left, top, width, height, score, label in boxes:
                names = {"id": next(ids), "image_id": image_id, "category_id": label + 1}
                area = round(width * height, 2)
                box = {"bbox": [left, top, width, height], "area": area, "iscrowd": 0}
                yield {**names, **box, "score": score}

    compact = json.JSONEncoder(separators=(",", ":")).encode
    with durable.open_durable(path) as file:
        file.write(f'{{"categories":{compact(categories)}'.encode())
        for name, items in (("images", images()), ("annotations", annotations())):
            file.write(f',\n"{name}":['.encode())
            for number, item in enumerate(items):
                file.write(f"{',' if number else ''}\n{compact(item)}".encode())
            file.write(b"]")
        file.write(b"}\n")


def write_folder(path: Path, parts: Parts, pictures: Path) -> None:
    """Move the folder of pictures (on the same file system) to ``path``, with a table of keys.

    The parts have the columns key and file.
    """
    if path.is_dir() and not pictures.is_dir():  # it was moved before this process began
        return
    write_csv(pictures / TABLE_NAME, list(next(parts(), {})), map(csv_rows, parts()))
    durable.sync(pictures)
    durable.move(pictures, path)


def check_folder(path: Path) -> None:
    """Raise ConfigError C356 for a folder that holds more than pictures that its table lists."""
    if not os.path.lexists(path):
        return
    places = [place for place in path.rglob("*") if place.is_symlink() or not place.is_dir()]
    names = {str(place.relative_to(path)) for place in places}
    allowed: set[str] = set()
    if TABLE_NAME in names:
        # Keys may be names of files, which may be any bytes.
        text = (path / TABLE_NAME).read_bytes().decode("utf-8", "surrogateescape")
        with suppress(csv.Error, KeyError):
            allowed = {row["file"] for row in csv.DictReader(io.StringIO(text, newline=""))}
            allowed.add(TABLE_NAME)
    if not path.is_dir() or set(map(safe_text.csv_cell, names)) - allowed:
        what = "is there already, and holds something else"
        raise ConfigError(356, f"output.path = {path}", what, "choose another folder")
