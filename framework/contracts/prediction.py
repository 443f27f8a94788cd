"""What a model predicts for the records of a batch, by kind of objective."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch

MOST_IN_UINT8 = 256  # classes whose numbers fit one byte


@dataclass(frozen=True)
class ClassProbabilities:
    """A probability of every class: float [B, classes]. They add up to 1, or each stands alone."""

    values: Tensor


@dataclass(frozen=True)
class PredictedMaps:
    """A class number per pixel: uint8 or int64 [B, H, W]."""

    values: Tensor


class ScoredBoxes(NamedTuple):
    """The boxes of one record, the best first.

    Attributes:
        boxes: Left, top, right and bottom in pixels of what the model saw: float [n, 4].
        scores: From 0 to 1: float [n].
        labels: Class numbers: int64 [n].
    """

    boxes: Tensor
    scores: Tensor
    labels: Tensor


@dataclass(frozen=True)
class PredictedBoxes:
    """The boxes of each of B records."""

    values: Sequence[ScoredBoxes]


@dataclass(frozen=True)
class PredictedTexts:
    """A text of each of B records."""

    values: Sequence[str]


@dataclass(frozen=True)
class PredictedNumbers:
    """One or more numbers of each record: float [B, ...]."""

    values: Tensor


@dataclass(frozen=True)
class PredictedImages:
    """A picture of each record: float [B, C, H, W] from 0 to 1."""

    values: Tensor


def class_numbers(logits: Tensor) -> Tensor:
    """Return the most probable class of each pixel of logits [B, classes, H, W].

    It is uint8 if all numbers fit, else int64: [B, H, W].
    """
    numbers = logits.argmax(1)
    if logits.shape[1] <= MOST_IN_UINT8:
        return numbers.to(torch.uint8)
    return numbers


Predictions = (
    ClassProbabilities
    | PredictedMaps
    | PredictedBoxes
    | PredictedTexts
    | PredictedNumbers
    | PredictedImages
)


@runtime_checkable
class Predicts(Protocol):
    """A capability of an objective: it knows what its model's output means.

    ``paceline predict`` and ``framework.load(...).predict`` need it.
    """

    @property
    def inputs(self) -> Sequence[str]:
        """The names of the fields that the model takes, in their order."""
        ...

    @property
    def target(self) -> str:
        """The name of the field with what is right."""
        ...

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        """Return what the model predicts for the records of a batch, which may lack the target.

        The model is in evaluation mode, and gradients are off.
        """
        ...
