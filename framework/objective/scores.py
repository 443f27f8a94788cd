"""What objectives share: a model's inputs and outputs, and the scores of classes."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.class_labels import IGNORE_INDEX, LabelRange, class_labels
from framework.contracts.prediction import (
    ClassProbabilities,
    PredictedMaps,
    Predictions,
    class_numbers,
)
from framework.contracts.training import Outcome
from framework.errors import ConfigError


def input_names(names: str | Sequence[str]) -> list[str]:
    """Return the names as a list. One name may stand alone."""
    return [names] if isinstance(names, str) else list(names)


@runtime_checkable
class HasLogits(Protocol):
    """The output of a model of transformers, and of some of torchvision."""

    logits: Tensor


def prediction(output: Any) -> Any:
    """Return a model's output, or the ``logits`` or ``out`` (of torchvision's models) in it."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, HasLogits):
        return output.logits
    if isinstance(output, Mapping) and "out" in output:
        return output["out"]
    return output


def predicted(model: nn.Module, batch: Batch, names: Sequence[str]) -> Any:
    return prediction(model(*[batch[name] for name in names]))


def for_target(output: Any, target: Any) -> Any:
    """Return [B, 1] as [B] for a target [B], with which losses of torch would broadcast it."""
    if not isinstance(output, Tensor) or not isinstance(target, Tensor):
        return output
    if target.dim() == 1 and output.shape == (len(target), 1):
        return output.squeeze(1)
    return output


def check_shapes(guess: Tensor, target: Tensor, name: str) -> None:
    """Raise ValueError for different shapes, which torch would broadcast, and learn nonsense."""
    if guess.shape != target.shape:
        what = f"the model gives {tuple(guess.shape)}"
        raise ValueError(f"{what}, {name} is {tuple(target.shape)}")


class Ranked:
    """Base of the objectives whose validations are compared by the first metric that differs.

    After a minus sign in ``ranking``, less is better. A missing metric counts as 0.
    """

    ranking: tuple[str, ...]

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        for name in self.ranking:
            metric = name.removeprefix("-")
            mine, other = new.get(metric, 0.0), old.get(metric, 0.0)
            if mine != other:
                return mine < other if name[0] == "-" else mine > other
        return False


class ClassObjective(Ranked):
    """Base of the objectives of one class per record, or per pixel.

    Loss and accuracy are means over the labels other than ``ignore_index``. Better: higher
    accuracy, then lower loss. ``target`` has classes, integers [B, ...], or shares of them, float
    [B, classes], of which the largest is right.
    """

    ranking = ("accuracy", "-loss")
    num_classes = 0  # that the model tells apart, once it was called

    def __init__(self, input: str | Sequence[str], target: str, ignore_index: int) -> None:  # noqa: A002
        self.input = input
        self.inputs = input_names(input)
        self.target = target
        self.ignore_index = ignore_index

    @property
    def label_range(self) -> LabelRange | None:
        if not self.num_classes:
            return None
        option = "objective.ignore_index"
        return LabelRange(self.target, self.num_classes, (self.ignore_index,), option)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the model's logits: [B, classes, ...]."""
        return predicted(model, batch, self.inputs)

    def labels(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return the target for logits: int64 [B, ...], or shares of classes that count."""
        self.num_classes = logits.shape[1]
        target = class_labels(batch[self.target], logits.dim() - 1)
        if target.is_floating_point() and 0 <= self.ignore_index < self.num_classes:
            target = target.clone()
            target[:, self.ignore_index] = 0
        return target

    def losses(self, logits: Tensor, target: Tensor, **options: Any) -> Tensor:
        """Return the cross-entropy of each label: [B, ...]."""
        ignored = IGNORE_INDEX if target.is_floating_point() else self.ignore_index
        return nn.functional.cross_entropy(
            logits, target, ignore_index=ignored, reduction="none", **options
        )

    def counted(self, target: Tensor) -> Tensor:
        """Return which labels count: bool [B, ...]. Shares do unless all are 0."""
        return target.any(1) if target.is_floating_point() else target != self.ignore_index

    def mean(self, losses: Tensor, target: Tensor) -> Tensor:
        """Return the mean of the losses [B, ...] whose label counts, 0 if none does."""
        counted = self.counted(target)
        return torch.where(counted, losses, 0.0).sum() / counted.sum().clamp(min=1)

    def outcome(self, model: nn.Module, loss: Tensor, logits: Tensor, target: Tensor) -> Outcome:
        """Return the outcome of a batch, with predictions unless the model is training."""
        classes = target.argmax(1) if target.is_floating_point() else target
        counted = self.counted(target)
        # integers: no graph grows here
        right = (logits.argmax(1) == classes) & counted
        if right.dim() > 1:
            right = right.flatten(1).sum(1)
        outcome = Outcome(loss, {"accuracy": right}, counted.sum())
        if not model.training:
            probabilities = logits.float().softmax(1).movedim(1, -1)
            outcome.predictions = (probabilities[counted], classes[counted])
        return outcome

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        return predicted_classes(self.logits(model, batch))


@final
class ClassWeights:
    """The weight of each class in a cross-entropy; None: all weigh the same. ConfigError C316."""

    def __init__(self, values: Sequence[float] | None) -> None:
        self._where = f"objective.class_weights = {values}"[:100]
        self._weights: Tensor | None = None
        if values is None:
            return
        is_list = not isinstance(values, str) and len(values) > 0
        if not is_list or not all(type(v) in (int, float) and 0 <= v < math.inf for v in values):
            what = "must be a list with a number of at least 0 for each class"
            raise ConfigError(316, self._where, what, "correct it, or give balanced")
        self._weights = torch.tensor(values, dtype=torch.float32)

    def on(self, logits: Tensor) -> Tensor | None:
        """Return the weights for logits, on their device: float32 [classes], or None. C316."""
        if self._weights is None:
            return None
        if len(self._weights) != logits.shape[1]:
            what = f"has the length {len(self._weights)}, the model's output {logits.shape[1]}"
            raise ConfigError(316, self._where, what, "give a weight for each output")
        if self._weights.device != logits.device:
            self._weights = self._weights.to(logits.device)  # once: a copy waits for the device
        return self._weights


def predicted_classes(logits: Tensor) -> Predictions:
    """Return a probability of each class, or of logits [B, classes, H, W] a class per pixel."""
    if logits.dim() > 2:
        return PredictedMaps(class_numbers(logits))
    return ClassProbabilities(logits.float().softmax(1))
