"""What the objectives of classes share: weights of the classes, and which guesses are right."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, final

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
from framework.objective.model_inputs import input_names, model_inputs, prediction


class ClassObjective:
    """Base of the objectives of one class per record, or per pixel.

    Labels of ``ignore_index`` count in nothing. Loss and accuracy are means over the others.

    Better: higher accuracy, then lower loss.

    Attributes:
        input: The field that the model takes, or several.
        target: The field of classes: integers [B, ...], or float [B, classes] of shares.
        ignore_index: The number of labels that do not count.
    """

    input: str | Sequence[str]
    target: str
    ignore_index: int = IGNORE_INDEX
    num_classes = 0  # that the model tells apart, once it was called

    @property
    def label_range(self) -> LabelRange | None:
        if not self.num_classes:
            return None
        option = "objective.ignore_index"
        return LabelRange(self.target, self.num_classes, (self.ignore_index,), option)

    @property
    def inputs(self) -> Sequence[str]:
        return input_names(self.input)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the model's logits: [B, classes, ...]."""
        return prediction(model(*model_inputs(batch, self.input)))

    def labels(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return the target for logits: int64 [B, ...], or shares of classes that count."""
        self.num_classes = logits.shape[1]
        target = class_labels(batch[self.target], logits.dim() - 1)
        if target.is_floating_point() and 0 <= self.ignore_index < self.num_classes:
            target = target.clone()
            target[:, self.ignore_index] = 0
        return target

    def outcome(self, model: nn.Module, loss: Tensor, logits: Tensor, target: Tensor) -> Outcome:
        """Return the outcome of a batch, with predictions unless the model is training."""
        classes = target.argmax(1) if target.is_floating_point() else target
        counted = counted_labels(target, self.ignore_index)
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

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return (new["accuracy"], -new["loss"]) > (old["accuracy"], -old["loss"])


@final
class ClassWeights:
    """The weight of each class in a cross-entropy; None: all classes weigh the same.

    ConfigError C316 unless the weights are numbers of at least 0.
    """

    def __init__(self, values: Sequence[float] | None) -> None:
        self._weights: Tensor | None = None
        if values is None:
            return
        self._where = where = f"objective.class_weights = {values}"[:100]
        is_list = not isinstance(values, str)
        if not is_list or not values or not all(map(_is_weight, values)):
            what = "must be a list with a number of at least 0 for each class"
            fix = "correct it, or give balanced"
            raise ConfigError(316, where, what, fix)
        self._weights = torch.tensor(values, dtype=torch.float32)

    def on(self, device: torch.device, num_classes: int) -> Tensor | None:
        """Return the weights on a device: float32 [classes], or None.

        ConfigError C316 if the model gives another number of classes.
        """
        if self._weights is None:
            return None
        if len(self._weights) != num_classes:
            what = f"has the length {len(self._weights)}, the model's output {num_classes}"
            raise ConfigError(316, self._where, what, "give a weight for each output")
        if self._weights.device != device:
            self._weights = self._weights.to(device)  # once: a copy would wait for the device
        return self._weights

    def cross_entropy(
        self, logits: Tensor, target: Tensor, label_smoothing: float, ignore_index: int
    ) -> Tensor:
        """Return the mean over the labels that count, each of which weighs as much as its class.

        torch's own weighted mean divides by the sum of the weights of a batch. Then batches would
        not weigh what they hold.
        """
        is_shares = target.is_floating_point()
        options: dict[str, Any] = {
            "ignore_index": IGNORE_INDEX if is_shares else ignore_index,
            "label_smoothing": label_smoothing,
        }
        weights = self.on(logits.device, logits.shape[1])
        if weights is not None or is_shares:
            if weights is not None:
                logits = logits.float()
            losses = nn.functional.cross_entropy(
                logits, target, weights, reduction="none", **options
            )
            return mean_of_counted(losses, target, ignore_index)
        if label_smoothing:
            # torch's smoothed loss of no label at all has a gradient of NaN
            target = torch.where((target != ignore_index).any(), target, 0)
        return nn.functional.cross_entropy(logits, target, **options)


def _is_weight(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf


def predicted_classes(logits: Tensor) -> Predictions:
    """Return a probability of each class, or of logits [B, classes, H, W] a class per pixel."""
    if logits.dim() > 2:
        return PredictedMaps(class_numbers(logits))
    return ClassProbabilities(logits.float().softmax(1))


def counted_labels(target: Tensor, ignore_index: int) -> Tensor:
    """Return which labels count: bool [B, ...]. Shares do unless all are 0.

    Args:
        target: int64 [B, ...], or float [B, classes, ...] of shares.
        ignore_index: The number of labels that do not count.
    """
    return target.any(1) if target.is_floating_point() else target != ignore_index


def mean_of_counted(losses: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    """Return the mean of the losses whose label counts, 0 if none does.

    Args:
        losses: One for each label: float [B, ...].
        target: As in ``counted_labels``.
        ignore_index: The number of labels that do not count.
    """
    counted = counted_labels(target, ignore_index)
    return torch.where(counted, losses, 0.0).sum() / counted.sum().clamp(min=1)
