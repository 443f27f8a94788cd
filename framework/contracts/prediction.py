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
    """Float [B, classes]: probabilities that add up to 1, or that stand alone."""

    values: Tensor


@dataclass(frozen=True)
class PredictedMaps:
    """A class number per pixel: uint8 or int64 [B, H, W]."""

    values: Tensor


class ScoredBoxes(NamedTuple):
    """The boxes of one record, the best first."""

    boxes: Tensor  # left, top, right and bottom in pixels of what the model saw: float [n, 4]
    scores: Tensor  # from 0 to 1: float [n]
    labels: Tensor  # class numbers: int64 [n]


@dataclass(frozen=True)
class PredictedBoxes:
    values: Sequence[ScoredBoxes]  # of each of B records


@dataclass(frozen=True)
class PredictedTexts:
    values: Sequence[str]  # of each of B records


@dataclass(frozen=True)
class PredictedNumbers:
    values: Tensor  # float [B, ...]


@dataclass(frozen=True)
class PredictedImages:
    values: Tensor  # float [B, C, H, W] from 0 to 1


def class_numbers(logits: Tensor) -> Tensor:
    """Return the most probable class of each pixel of logits [B, classes, H, W]: [B, H, W].

    It is uint8 if all numbers fit, else int64.
    """
    numbers = logits.argmax(1)
    return numbers.to(torch.uint8) if logits.shape[1] <= MOST_IN_UINT8 else numbers


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

    inputs: Sequence[str]  # the names of the fields that the model takes, in their order
    target: str  # the name of the field with what is right

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        """Return what the model predicts for the records of a batch, which may lack the target.

        The model is in evaluation mode, and gradients are off.
        """
        ...
