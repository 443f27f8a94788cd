"""What an evaluation draws: which classes are taken for which, and the worst records."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from time import strftime
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from framework.cli.pages import rendered, styled
from framework.commands.evaluate.evaluation import Summary
from framework.config.input_source import as_pixels, class_name
from framework.config.saved_run import SavedRun
from framework.contracts.batch import Batch, move
from framework.contracts.data import Source
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
from framework.media.decode import colored, data_uri, label_colors
from framework.system.durable import write_bytes

TEMPLATES = Path(__file__).parent / "templates"
MOST_NAMED = 40  # classes that get names on the axes
MOST_WRITTEN = 15  # classes whose counts are written into the squares
LONGEST = 18  # characters of a name
INCH_PER_CLASS = 0.32


def write_confusion(path: Path, confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> None:
    """Write a PNG of the counts, [C][C]: the truth by row, the guess by column."""
    counts = np.array(confusion, np.float64)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    number = len(counts)
    side = min(16.0, max(4.5, 2 + INCH_PER_CLASS * number))
    with styled():
        figure = Figure(figsize=(side + 1, side), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.grid(visible=False)
        picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        figure.colorbar(picture, label="share of the true class", fraction=0.046)
        axes.set(xlabel="predicted", ylabel="true")
        if number <= MOST_NAMED:
            names = [name if len(name) <= LONGEST else f"{name[:LONGEST]}…" for name in classes]
            axes.set_xticks(range(number), names, rotation=90)
            axes.set_yticks(range(number), names)
        if number <= MOST_WRITTEN:
            for row, column in zip(*counts.nonzero(), strict=True):
                color = "white" if shares[row, column] > 0.5 else "black"
                text = f"{counts[row, column]:.0f}"
                axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
        file = BytesIO()
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    write_bytes(path, file.getvalue())


def shown_set(run: SavedRun, name: str, summary: Summary, source: Source) -> dict[str, Any]:
    """Read the worst records of a set again, predict them, and draw them.

    Return what the page shows of the set: ``worst`` has the pictures of each record, as pairs of a
    field's name and a data URI, and what is known of it, as pairs of texts.
    """
    means = [(key, f"{value:.4f}") for key, value in summary["means"].items()]
    shown: list[dict[str, Any]] = []
    for record in summary["worst"]:
        facts = [("loss", f"{record['loss']:.4f}")]
        if record["key"]:
            facts.append(("key", printable(record["key"])))
        facts.append(("record", str(record["index"])))
        pictures: list[tuple[str, str]] = []
        if source.finds_records:
            # one by one, since their images may differ in size
            batch = source.records(torch.tensor([record["index"]]))
            maps = [n for n in source.manifest.label_maps if isinstance(batch[n], Tensor)]
            pictures += _pictures(colored(batch, maps))
            if isinstance(run.objective, Predicts):
                predictions = run.predicted(run.finish(move(batch, run.device), 0))
                target = batch.get(run.objective.target)
                facts += _words(run.classes, predictions, target)
                pictures += _predicted_pictures(predictions)
        shown.append({"pictures": pictures, "facts": facts})
    data = printable(str(summary["data"]))
    about = {"data": data, "records": summary["records"], "means": means}
    return {"name": name, **about, "worst": shown}


def _pictures(batch: Batch) -> list[tuple[str, str]]:
    """Return the pictures of the only record of a batch: of fields of uint8 [1 or 3, H, W]."""
    pictures: list[tuple[str, str]] = []
    for name, values in batch.items():
        value = values[0] if isinstance(values, Tensor | list) and len(values) else None
        if not isinstance(value, Tensor) or value.dtype != torch.uint8 or value.dim() != 3:
            continue
        if value.shape[0] in (1, 3):
            pictures.append((name, data_uri(value.cpu().numpy())))
    return pictures


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


def _predicted_pictures(predictions: Predictions) -> list[tuple[str, str]]:
    if isinstance(predictions, PredictedMaps):
        pixels = label_colors()[predictions.values[0].cpu().numpy().clip(0, 255)]
    elif isinstance(predictions, PredictedImages):
        pixels = as_pixels(predictions)[0]
    else:
        return []
    return [("predicted", data_uri(pixels.transpose(2, 0, 1)))]


def worst_page(parts: Sequence[Mapping[str, Any]], run: str, weights: str) -> str:
    """Return the HTML of sets, as ``shown_set`` returns them."""
    return rendered(
        TEMPLATES / "worst.html",
        parts=parts,
        run=printable(run),
        weights=printable(weights),
        written=strftime("%Y-%m-%d %H:%M"),
    )
