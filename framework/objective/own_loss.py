"""Any loss of a model's output and a target, or a weighted sum of several."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.class_labels import LabelRange, class_labels
from framework.contracts.prediction import PredictedNumbers, Predictions
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.scores import for_target, input_names, predicted, predicted_classes

CLASSES, NUMBERS = "classes", "numbers"
TAKES_CLASSES = (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiMarginLoss)
RECORDS = "records"


@final
class OwnLoss:
    """A loss such as ``torch.nn.HuberLoss`` or a class of the user's. A lower loss is better.

    Each loss is called with the model's output and the fields of ``target``. An output [B, 1] is
    given as [B] if the first target is one number per record. torch's losses of classes get class
    numbers as int64 [B]. A loss returns a mean (0-d), or a value for each record ([B]). A tuple of
    outputs is given as it is; the first of them is the prediction.

    Args:
        losses: The losses by name, a mapping. The sum of several is minimized, and each is logged.
        weights: The weight of each loss by name, a mapping; 1 for a loss without one.
        predicts: What the model's output means in predictions and metrics: ``classes`` (logits
            [B, classes, ...]) or ``numbers``. An output of one number per record is numbers.
        count: What the losses are a mean over: ``records`` (with a label that counts), or the field
            that has a number for each record, such as its tokens. None: only torch's are known.
    """

    def __init__(
        self,
        input: str | Sequence[str],  # noqa: A002
        target: str | Sequence[str],
        losses: Any,
        weights: Any = None,
        predicts: str = NUMBERS,
        count: str | None = None,
    ) -> None:
        if predicts not in (CLASSES, NUMBERS):
            where = f"objective.predicts = {predicts}"
            fix = f"choose {CLASSES} or {NUMBERS}"
            raise ConfigError(390, where, "is nothing that a model predicts", fix)
        fix = "give objective.losses={NAME: {_target_: torch.nn.HuberLoss}}"
        if not isinstance(losses, Mapping) or not losses:
            where = f"objective.losses = {losses}"[:100]
            raise ConfigError(390, where, "must have one or more losses by name", fix)
        for name, loss in losses.items():
            if not callable(loss):
                where = f"objective.losses.{name} = {loss}"[:100]
                raise ConfigError(390, where, "cannot be called", fix)
        if not isinstance(weights or {}, Mapping):
            where = f"objective.weights = {weights}"[:100]
            raise ConfigError(390, where, "must be numbers by the name of a loss", "correct it")
        for name, weight in (weights or {}).items():
            where = f"objective.weights.{name} = {weight}"[:100]
            if name not in losses:
                what = "is the weight of no loss"
                raise ConfigError(390, where, what, f"choose from {', '.join(losses)}")
            if type(weight) not in (int, float) or not math.isfinite(weight):
                raise ConfigError(390, where, "must be a finite number", "correct it")
        self.inputs = input_names(input)
        self.targets = input_names(target)
        self.target = self.targets[0]
        self.predicts = predicts
        self.count = count
        self.unknown_mean: ConfigError | None = None
        self.losses: dict[str, Callable[..., Any]] = dict(losses)
        self.weights: dict[str, float] = {**dict.fromkeys(losses, 1.0), **(weights or {})}
        self.label_range: LabelRange | None = None  # known after the first call
        self._device: torch.device | None = None

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        targets = [batch[name] for name in self.targets]
        output = for_target(predicted(model, batch, self.inputs), targets[0])
        device = targets[0].device
        if device != self._device:
            self._device = device
            for loss in self.losses.values():
                if isinstance(loss, nn.Module):
                    loss.to(device)  # its buffers, such as the weights of classes
        values: dict[str, Tensor] = {}
        for name, loss in self.losses.items():
            first = targets[0]
            if isinstance(loss, TAKES_CLASSES) and isinstance(output, Tensor):
                ignored = () if isinstance(loss, nn.MultiMarginLoss) else (loss.ignore_index,)
                self.label_range = LabelRange(self.target, output.shape[1], ignored)
                first = class_labels(first, output.dim() - 1)
            value = loss(output, first, *targets[1:])
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise ValueError(f"the loss {name} returned a {kind}, not a tensor")  # noqa: TRY004
            values[name] = value
        means = {name: value.float().mean() for name, value in values.items()}
        total = torch.stack([self.weights[name] * mean for name, mean in means.items()]).sum()
        parts = means if len(means) > 1 else {}
        outcome = Outcome(total, {}, self._count(batch, values, targets[0]), losses=parts)
        if not model.training and len(targets) == 1:
            outcome.predictions = self._compared(_first(output), targets[0])
        return outcome

    def _count(self, batch: Batch, values: Mapping[str, Tensor], target: Tensor) -> Tensor | None:
        """Return the count that the losses are a mean over, or None, and set ``unknown_mean``."""
        over: dict[int | None, str] = {}  # a loss by the label that its mean leaves out
        for name, loss in self.losses.items():
            if values[name].dim():  # its values for the records are averaged
                over[None] = name
                continue
            over[_ignored(loss)] = name
            # torch's mean over records or labels, all of which weigh the same
            is_known = type(loss).__module__ == nn.modules.loss.__name__
            is_known &= getattr(loss, "reduction", None) in ("mean", "batchmean")
            if is_known and getattr(loss, "weight", None) is None:
                continue
            where = f"objective.losses.{name}"
            if isinstance(loss, nn.Module) and getattr(loss, "reduction", None) == "sum":
                what = "is a sum, which passes and ranks would average"
                self.unknown_mean = ConfigError(391, where, what, f"set {where}.reduction=mean")
            elif self.count is None:
                what = "is a mean over something unknown"
                fix = "set objective.count=records, or to the field with a number for each record"
                why = f"{what}, by which passes and ranks cannot be weighed"
                self.unknown_mean = ConfigError(391, where, why, fix)
        if self.count not in (None, RECORDS):
            return batch[self.count].sum()
        if len(over) > 1 and self.count is None and self.unknown_mean is None:
            name = next(name for label, name in over.items() if label is not None)
            where = f"objective.losses.{name}"
            what = "leaves out labels that another loss counts"
            why = f"{what}, so passes and ranks have two weights"
            fix = f"set ++{where}.reduction=none, for means over all records"
            self.unknown_mean = ConfigError(391, where, why, fix)
        ignored = next(iter(over))
        if len(over) > 1 or ignored is None or target.is_floating_point() or self.unknown_mean:
            return None
        return (target.long() != ignored).sum()

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        output = _first(predicted(model, batch, self.inputs))
        if self._gives_classes(output):
            return predicted_classes(output)
        return PredictedNumbers(output.float())

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]

    def _compared(self, output: Any, target: Tensor) -> tuple[Tensor, Tensor] | None:
        if not isinstance(output, Tensor):
            return None
        if target.is_floating_point() or not self._gives_classes(output):
            return output.float(), target
        labels = class_labels(target, output.dim() - 1)
        if labels.dim() != output.dim() - 1:
            return None
        probabilities = output.float().softmax(1)
        ignored = {_ignored(loss) for loss in self.losses.values()} - {None}
        if not ignored:
            return probabilities, labels
        counted = torch.ones_like(labels, dtype=torch.bool)
        for number in ignored:
            counted &= labels != number
        return probabilities.movedim(1, -1)[counted], labels[counted]

    def _gives_classes(self, output: Tensor) -> bool:
        # ``predicts=auto`` takes counts for classes: a softmax over one number is always 1
        return self.predicts == CLASSES and output.dim() > 1 and output.shape[1] > 1


def _first(output: Any) -> Any:
    """Return the first value of a tuple: the prediction, before a loss or matrices, say."""
    return output[0] if isinstance(output, tuple) else output


def _ignored(loss: object) -> int | None:
    """Return the label that a loss leaves out of its mean, or None."""
    return loss.ignore_index if isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss) else None
