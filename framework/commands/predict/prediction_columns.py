"""The predictions of a batch as columns of a table, which JSON can hold."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from framework.config.predict_images import class_name
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

Columns = dict[str, list[Any]]

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


class BoxRow(NamedTuple):
    """A box as COCO has it, with the number of its class."""

    left: float
    top: float
    width: float
    height: float
    score: float
    label: int


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
        return _class_columns(predictions.values, classes, top_k)
    if isinstance(predictions, PredictedTexts):
        return {"text": list(predictions.values)}
    assert isinstance(predictions, PredictedNumbers)
    numbers = predictions.values.float().cpu().numpy().reshape(len(predictions.values), -1)
    if numbers.shape[1] == 1:
        return {"value": shortest(numbers[:, 0])}
    return {f"value_{n}": shortest(numbers[:, n]) for n in range(numbers.shape[1])}


def _class_columns(probabilities: Tensor, classes: Sequence[str], top_k: int) -> Columns:
    best, numbers = probabilities.topk(top_k, dim=1)
    names = [class_name(classes, number) for number in range(probabilities.shape[1])]
    shares = best.double().cpu().numpy().round(DIGITS)
    places = numbers.cpu().tolist()
    columns: Columns = {}
    for rank in range(top_k):
        ending = "" if rank == 0 else f"_{rank + 1}"
        columns[f"class{ending}"] = [names[row[rank]] for row in places]
        columns[f"probability{ending}"] = shares[:, rank].tolist()
    return columns


def shortest(numbers: np.ndarray) -> list[float]:
    """Return float32 numbers whose text is the shortest that gives them back."""
    return [float(text) for text in numbers.astype(np.float32).astype(str)]


def box_rows(scored: ScoredBoxes) -> list[BoxRow]:
    """Return the boxes of a record, the best first."""
    boxes = scored.boxes.float()
    sizes = boxes[:, 2:] - boxes[:, :2]
    corners = torch.cat([boxes[:, :2], sizes], dim=1).double().numpy().round(2).tolist()
    scores = scored.scores.double().numpy().round(DIGITS).tolist()
    rows = zip(corners, scores, scored.labels.tolist(), strict=True)
    return [
        BoxRow(left, top, width, height, score, label)
        for (left, top, width, height), score, label in rows
    ]
