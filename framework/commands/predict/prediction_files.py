"""Predictions as columns of a table, and all parts of them as a file or a folder of pictures."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from framework.config.input_source import class_name
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
from framework.errors import ConfigError
from framework.system.durable import move, open_durable, sync
from framework.system.safe_text import csv_cell
from framework.system.user_code import needed

Columns = dict[str, list[Any]]
Parts = Callable[[], Iterator[Columns]]  # yields the columns of each part, in order

TABLE, BOXES, MASKS, IMAGES = "table", "boxes", "mask", "image"
FORMS = {
    ClassProbabilities: TABLE,
    PredictedTexts: TABLE,
    PredictedNumbers: TABLE,
    PredictedBoxes: BOXES,
    PredictedMaps: MASKS,
    PredictedImages: IMAGES,
}
WORDS = {
    TABLE: ("rows of a table", "output=FILE.csv or FILE.parquet"),
    BOXES: ("boxes", "output=FILE.json"),
    MASKS: ("label maps", "output=FOLDER as=mask"),
    IMAGES: ("images", "output=FOLDER as=image"),
}
DIGITS = 6  # of a probability
TABLE_NAME = "predictions.csv"  # of a folder of pictures


def check_form(predictions: Predictions, form: str, path: str) -> None:
    """Raise ConfigError C354 if the output cannot hold what the model predicts."""
    needed = FORMS[type(predictions)]
    if needed != form:
        what, fix = WORDS[needed]
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
        names = [[class_name(classes, own) for own in row] for row in numbers.tolist()]
        columns: Columns = {}
        for rank in range(top_k):
            ending = "" if rank == 0 else f"_{rank + 1}"
            columns[f"class{ending}"] = [row[rank] for row in names]
            columns[f"probability{ending}"] = shares[:, rank].tolist()
        return columns
    if isinstance(predictions, PredictedTexts):
        return {"text": list(predictions.values)}
    assert isinstance(predictions, PredictedNumbers)
    numbers = predictions.values.float().cpu().numpy().reshape(len(predictions.values), -1)
    if numbers.shape[1] == 1:
        return {"value": shortest(numbers[:, 0])}
    return {f"value_{n}": shortest(numbers[:, n]) for n in range(numbers.shape[1])}


def shortest(numbers: np.ndarray) -> list[float]:
    """Return float32 numbers whose text is the shortest that gives them back."""
    return [float(text) for text in numbers.astype(np.float32).astype(str)]


def box_rows(scored: ScoredBoxes) -> list[list[Any]]:
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
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def write_csv(path: Path, names: Sequence[str], texts: Iterable[str]) -> None:
    """Write a table as CSV (UTF-8): the names of the columns, and the rows of each part as text."""
    with open_durable(path) as file:
        for text in chain([csv_rows({name: [name] for name in names})], texts):
            # Keys may be names of files, which may be any bytes.
            file.write(text.encode(errors="surrogateescape"))


def write_parquet(path: Path, parts: Parts) -> None:
    """Write a table as Parquet, a group of rows per part. ResourceError R112 without pyarrow."""
    needed("pyarrow", "parquet")
    from framework.store.column_files import write_row_groups  # noqa: PLC0415  # needs pyarrow

    with open_durable(path) as file:
        write_row_groups(file, parts())


def write_coco(path: Path, parts: Parts, classes: Sequence[str]) -> None:
    """Write boxes as COCO has them, with a ``score``. Ids begin with 1."""
    labels = {box[5] for part in parts() for boxes in part["boxes"] for box in boxes}
    numbers = range(max(len(classes), max(labels, default=-1) + 1))
    categories = [{"id": n + 1, "name": class_name(classes, n)} for n in numbers]
    with open_durable(path) as file:
        file.write(b'{"categories":' + _json(categories) + b',\n"images":[')
        _write_items(file, _images(parts))
        file.write(b'],\n"annotations":[')
        _write_items(file, _annotations(parts))
        file.write(b"]}\n")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def _write_items(file: IO[bytes], items: Iterable[dict[str, Any]]) -> None:
    for number, item in enumerate(items):
        file.write((b",\n" if number else b"\n") + _json(item))


def _images(parts: Parts) -> Iterator[dict[str, Any]]:
    ids = count(1)
    for part in parts():
        for key, width, height in zip(part["key"], part["width"], part["height"], strict=True):
            yield {"id": next(ids), "file_name": key, "width": width, "height": height}


def _annotations(parts: Parts) -> Iterator[dict[str, Any]]:
    ids = count(1)
    records = chain.from_iterable(part["boxes"] for part in parts())
    for image_id, boxes in enumerate(records, 1):
        for left, top, width, height, score, label in boxes:
            yield {
                "id": next(ids),
                "image_id": image_id,
                "category_id": label + 1,
                "bbox": [left, top, width, height],
                "area": round(width * height, 2),
                "iscrowd": 0,
                "score": score,
            }


def write_folder(path: Path, parts: Parts, pictures: Path) -> None:
    """Move the folder of pictures (on the same file system) to ``path``, with a table of keys.

    The parts have the columns key and file.
    """
    if path.is_dir() and not pictures.is_dir():  # it was moved before this process began
        return
    write_csv(pictures / TABLE_NAME, list(next(parts(), {})), map(csv_rows, parts()))
    sync(pictures)
    move(pictures, path)


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
    if not path.is_dir() or set(map(csv_cell, names)) - allowed:
        what = "is there already, and holds something else"
        raise ConfigError(356, f"output.path = {path}", what, "choose another folder")
