"""A page of the records with the highest loss, with their pictures and keys."""

from collections.abc import Sequence
from pathlib import Path
from time import strftime
from typing import Any, NamedTuple

import torch
from torch import Tensor

from framework.cli.page_template import rendered
from framework.commands.evaluate.evaluation import SetResult
from framework.config.predict_images import as_pixels, class_name
from framework.config.saved_run import SavedRun
from framework.contracts.batch import Batch, move
from framework.contracts.data import FindsRecords
from framework.contracts.prediction import (
    ClassProbabilities,
    PredictedBoxes,
    PredictedImages,
    PredictedMaps,
    PredictedTexts,
    Predictions,
    Predicts,
)
from framework.errors import printable
from framework.media.decode import data_uri
from framework.media.label_map import colored, label_colors

TEMPLATES = Path(__file__).parent / "templates"


class Picture(NamedTuple):
    """A picture on the page: the name of its field, and a data URI."""

    name: str
    source: str


class ShownRecord(NamedTuple):
    """A record on the page: its pictures, and what is known of it."""

    pictures: list[Picture]
    facts: list[tuple[str, str]]


class ShownSet(NamedTuple):
    """The worst records of one set of data."""

    name: str
    data: str
    records: int
    means: list[tuple[str, str]]
    worst: list[ShownRecord]


def shown_set(run: SavedRun, name: str, result: SetResult) -> ShownSet:
    """Read the worst records of a set again, predict them, and draw them."""
    summary = result.summary
    means = [(key, f"{value:.4f}") for key, value in summary["means"].items()]
    worst = _shown_records(run, result)
    return ShownSet(name, printable(str(summary["data"])), summary["records"], means, worst)


def _shown_records(run: SavedRun, result: SetResult) -> list[ShownRecord]:
    facts = [_facts(record) for record in result.summary["worst"]]
    if not isinstance(result.source, FindsRecords):
        return [ShownRecord([], own) for own in facts]
    # one by one, since their images may differ in size
    batches = [result.source.records(torch.tensor([record.index])) for record in result.worst]
    return [_shown(run, result, batch, own) for batch, own in zip(batches, facts, strict=True)]


def _shown(
    run: SavedRun, result: SetResult, batch: Batch, facts: list[tuple[str, str]]
) -> ShownRecord:
    """Return the only record of a batch."""
    pictures = _pictures(colored(batch, _maps(batch, result)))
    shown = ShownRecord([of_field[0] for of_field in pictures], facts)
    if isinstance(run.objective, Predicts):
        target = batch.get(run.objective.target)
        predictions = run.predicted(run.finish(move(batch, run.device), 0))
        shown.facts.extend(_words(run.classes, predictions, target))
        shown.pictures.extend(_predicted_pictures(predictions))
    return shown


def _facts(record: dict[str, Any]) -> list[tuple[str, str]]:
    facts = [("loss", f"{record['loss']:.4f}")]
    if record["key"]:
        facts.append(("key", printable(record["key"])))
    return [*facts, ("record", str(record["index"]))]


def _maps(batch: Batch, result: SetResult) -> list[str]:
    return [name for name in result.source.manifest.label_maps if isinstance(batch[name], Tensor)]


def _pictures(batch: Batch) -> list[list[Picture]]:
    """Return the pictures of each field that has any, record by record."""
    fields: list[list[Picture]] = []
    for name, values in batch.items():
        if not isinstance(values, Tensor | list) or not len(values):
            continue
        if all(_is_picture(value) for value in values):
            fields.append([Picture(name, data_uri(value.cpu().numpy())) for value in values])
    return fields


def _is_picture(value: Any) -> bool:
    is_pixels = isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 3
    return is_pixels and value.shape[0] in (1, 3)


def _words(classes: Sequence[str], predictions: Predictions, target: Any) -> list[tuple[str, str]]:
    """Return what is right for the only record of a batch, and what is predicted."""
    words: list[tuple[str, str]] = []
    if isinstance(predictions, ClassProbabilities):
        if isinstance(target, Tensor) and not target[0].dim():
            words.append(("label", printable(class_name(classes, int(target[0])))))
        probability, best = predictions.values[0].max(0)
        name = printable(class_name(classes, int(best)))
        words.append(("predicted", f"{name} ({float(probability):.3f})"))
    elif isinstance(predictions, PredictedTexts):
        if isinstance(target, list):
            words.append(("text", printable(str(target[0]))))
        words.append(("predicted", printable(predictions.values[0])))
    elif isinstance(predictions, PredictedBoxes):
        words.append(("boxes", str(len(predictions.values[0].boxes))))
    return words


def _predicted_pictures(predictions: Predictions) -> list[Picture]:
    if isinstance(predictions, PredictedMaps):
        pixels = label_colors()[predictions.values[0].cpu().numpy().clip(0, 255)]
    elif isinstance(predictions, PredictedImages):
        pixels = as_pixels(predictions)[0]
    else:
        return []
    return [Picture("predicted", data_uri(pixels.transpose(2, 0, 1)))]


def worst_page(parts: Sequence[ShownSet], run: str, weights: str) -> str:
    """Return the HTML."""
    return rendered(
        TEMPLATES / "worst.html",
        parts=parts,
        run=printable(run),
        weights=printable(weights),
        written=strftime("%Y-%m-%d %H:%M"),
    )
