"""How often each class is taken for each other one, and the figures of each class."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from framework.contracts.class_labels import class_labels
from framework.contracts.prediction import ClassProbabilities, PredictedMaps, Predictions
from framework.contracts.records import IGNORE

MOST_CLASSES = 256  # of maps


@dataclass(frozen=True)
class ClassFigures:
    """The figures of one class.

    Attributes:
        name: Its name, or its number.
        count: Records, or pixels, that are of this class.
        precision: The share of the guesses of this class that are right; None without a guess.
        recall: The share of ``count`` that is guessed; None if ``count`` is 0.
        f1: The harmonic mean of both; None if both are None.
        iou: Intersection over union of guesses and truth; None if there is neither.
    """

    name: str
    count: int
    precision: float | None
    recall: float | None
    f1: float | None
    iou: float | None


def counted(predictions: Predictions, target: Tensor) -> Tensor | None:
    """Return how many records, or pixels, of each class have each guess: float64 [C, C].

    C is the number of classes; for maps, which do not tell it, ``MOST_CLASSES``.

    Return None for predictions that are no classes, and for targets that are no class numbers.
    Pixels of ``IGNORE`` and numbers outside of the classes do not count.

    Args:
        predictions: Of a batch.
        target: Class numbers, as ``class_labels`` takes them; or shares of classes, [B, C].
    """
    if isinstance(predictions, ClassProbabilities):
        guess = predictions.values.argmax(1)
        num_classes = predictions.values.shape[1]
        if target.is_floating_point() and target.shape == predictions.values.shape:
            target = target.argmax(1)
    elif isinstance(predictions, PredictedMaps):
        guess = predictions.values.long()
        num_classes = MOST_CLASSES
    else:
        return None
    truth = class_labels(target, guess.dim())
    if truth.is_floating_point() or truth.shape != guess.shape:
        return None
    is_class = (truth >= 0) & (truth < num_classes) & (guess < num_classes)
    if isinstance(predictions, PredictedMaps):
        is_class &= truth != IGNORE
    places = truth[is_class] * num_classes + guess[is_class]
    counts = torch.bincount(places.flatten().cpu(), minlength=num_classes**2)
    return counts.view(num_classes, num_classes).double()


def trimmed(confusion: Tensor, num_named: int) -> Tensor:
    """Return the counts without the classes behind the last that has a name or occurs."""
    occurs = (confusion.sum(0) + confusion.sum(1)).nonzero()
    num_used = int(occurs.max()) + 1 if len(occurs) else 0
    num_classes = max(num_named, num_used)
    return confusion[:num_classes, :num_classes]


def class_figures(confusion: Tensor, classes: Sequence[str]) -> list[ClassFigures]:
    """Return the figures of each class from [C, C]: the truth by row, the guess by column."""
    sums = torch.stack([confusion.diag(), confusion.sum(1), confusion.sum(0)], 1).double()
    figures: list[ClassFigures] = []
    for number, (right, count, guesses) in enumerate(sums.tolist()):
        name = classes[number] if number < len(classes) else str(number)
        figures.append(
            ClassFigures(
                name,
                int(count),
                _share(right, guesses),
                _share(right, count),
                _share(2 * right, count + guesses),
                _share(right, count + guesses - right),
            )
        )
    return figures


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
