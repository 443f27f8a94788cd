"""Put the predictions of all parts into one file, or a folder of pictures beside a table."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

from framework.commands.predict.prediction_columns import BoxRow, Columns
from framework.config.predict_images import class_name
from framework.errors import ConfigError
from framework.system.csv_text import csv_cell
from framework.system.durable import move, open_durable, sync
from framework.system.extras import needed

Parts = Callable[[], Iterator[Columns]]  # yields the columns of each part, in order

TABLE_NAME = "predictions.csv"  # of a folder of pictures
JSON_PAIRS = (",", ":")


def csv_rows(columns: Columns) -> str:
    """Return the rows of a table as CSV, without a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    rows = zip(*columns.values(), strict=True)
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue()


def write_csv(path: Path, names: Sequence[str], texts: Iterable[str]) -> None:
    """Write a table as CSV with a header, UTF-8.

    Args:
        path: The file.
        names: Of the columns.
        texts: The rows of each part, as ``csv_rows`` has them.
    """
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
    labels = sorted({box[5] for part in parts() for boxes in part["boxes"] for box in boxes})
    numbers = range(max(len(classes), max(labels, default=-1) + 1))
    categories = [{"id": n + 1, "name": class_name(classes, n)} for n in numbers]
    with open_durable(path) as file:
        file.write(b'{"categories":' + _json(categories) + b',\n"images":[')
        _write_items(file, _images(parts))
        file.write(b'],\n"annotations":[')
        _write_items(file, _annotations(parts))
        file.write(b"]}\n")


def _json(value: Any) -> bytes:
    return json.dumps(value, separators=JSON_PAIRS).encode("ascii")


def _write_items(file: IO[bytes], items: Iterator[dict[str, Any]]) -> None:
    for number, item in enumerate(items):
        file.write((b",\n" if number else b"\n") + _json(item))


def _images(parts: Parts) -> Iterator[dict[str, Any]]:
    number = 0
    for part in parts():
        for key, width, height in zip(part["key"], part["width"], part["height"], strict=True):
            number += 1
            yield {"id": number, "file_name": key, "width": width, "height": height}


def _annotations(parts: Parts) -> Iterator[dict[str, Any]]:
    image = number = 0
    for part in parts():
        for boxes in part["boxes"]:
            image += 1
            for box in (BoxRow(*row) for row in boxes):
                number += 1
                yield {
                    "id": number,
                    "image_id": image,
                    "category_id": box.label + 1,
                    "bbox": [box.left, box.top, box.width, box.height],
                    "area": round(box.width * box.height, 2),
                    "iscrowd": 0,
                    "score": box.score,
                }


def write_folder(path: Path, parts: Parts, pictures: Path) -> None:
    """Move the folder of pictures to its place, with a table of their keys.

    Args:
        path: Where the folder goes.
        parts: Have the columns key and file.
        pictures: The folder, on the same file system.
    """
    if path.is_dir() and not pictures.is_dir():  # it was moved before this process began
        return
    write_csv(pictures / TABLE_NAME, names_of(parts), map(csv_rows, parts()))
    sync(pictures)
    move(pictures, path)


def names_of(parts: Parts) -> list[str]:
    """Return the names of the columns."""
    return list(next(parts(), {}))


def check_folder(path: Path) -> None:
    """Raise ConfigError C356 for a folder that is not one of ours, and must not be replaced."""
    if not os.path.lexists(path) or (path.is_dir() and _is_ours(path)):
        return
    what = "is there already, and holds something else"
    raise ConfigError(356, f"output.path = {path}", what, "choose another folder")


def _is_ours(folder: Path) -> bool:
    """Return whether a folder is empty, or holds only pictures that its table lists."""
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if not _is_folder(path)}
    if TABLE_NAME not in names:
        return not os.listdir(folder)
    # Keys may be names of files, which may be any bytes.
    text = (folder / TABLE_NAME).read_bytes().decode("utf-8", "surrogateescape")
    table = csv.DictReader(io.StringIO(text, newline=""))
    names = set(map(csv_cell, names))
    try:
        has_files = "file" in (table.fieldnames or ())
        listed = {row["file"] for row in table if has_files}
    except csv.Error:
        return False
    return has_files and names <= {TABLE_NAME, *listed}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()
