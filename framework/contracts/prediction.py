"""What a model predicts for the records of a batch, by kind of objective."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch


class ClassProbabilities(NamedTuple):
    values: Tensor  # float [B, classes]: probabilities that add up to 1, or that stand alone


class PredictedMaps(NamedTuple):
    values: Tensor  # a class number per pixel: uint8 or int64 [B, H, W]


class ScoredBoxes(NamedTuple):
    """The boxes of one record, the best first."""

    boxes: Tensor  # left, top, right and bottom in pixels of what the model saw: float [n, 4]
    scores: Tensor  # from 0 to 1: float [n]
    labels: Tensor  # class numbers: int64 [n]


class PredictedBoxes(NamedTuple):
    values: Sequence[ScoredBoxes]  # of each of B records


class PredictedTexts(NamedTuple):
    values: Sequence[str]  # of each of B records


class PredictedNumbers(NamedTuple):
    values: Tensor  # float [B, ...]


class PredictedImages(NamedTuple):
    values: Tensor  # float [B, C, H, W] from 0 to 1


def class_numbers(logits: Tensor) -> Tensor:
    """Return the likeliest classes of logits [B, classes, H, W], uint8 if they fit: [B, H, W]."""
    numbers = logits.argmax(1)
    return numbers.to(torch.uint8) if logits.shape[1] <= 256 else numbers


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
