"""One class per record, or per pixel: cross-entropy to learn, accuracy to look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.prediction import (
    ClassProbabilities,
    PredictedMaps,
    Predictions,
    class_numbers,
)
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.model_inputs import input_names, model_inputs
from framework.objective.tta import check_tta, mean_logits


@final
@dataclass
class Classify:
    """Cross-entropy over the model's logits [B, classes]. Better: higher accuracy, then lower loss.

    ``input`` is the field that the model takes, or several, such as sounds and their lengths.

    ``target`` is int64 [B], or float [B, classes] of shares (mixup), of which the largest is right.

    ``tta`` names the test-time augmentation, see ``framework.objective.tta``. It is used while the
    model is in evaluation mode.
    """

    input: str | Sequence[str]
    target: str
    label_smoothing: float
    tta: str = "none"

    def __post_init__(self) -> None:
        check_tta(self.tta)
        if self.tta != "none" and not isinstance(self.input, str):
            what = "changes images, and the model takes several fields"
            raise ConfigError(277, f"objective.tta = {self.tta}", what, "set objective.tta=none")

    @property
    def inputs(self) -> Sequence[str]:
        return input_names(self.input)

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = self._logits(model, batch)
        target = batch[self.target]
        loss = nn.functional.cross_entropy(logits, target, label_smoothing=self.label_smoothing)
        classes = target
        if target.is_floating_point():
            classes = target.argmax(1)
        correct = logits.argmax(1) == classes  # integers: no graph grows here
        if correct.dim() > 1:  # label maps: of each record, the share of its pixels
            correct = correct.float().flatten(1).mean(1)
        return Outcome(loss, {"accuracy": correct}, len(target))

    def _logits(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = model_inputs(batch, self.input)
        if model.training or self.tta == "none":
            return model(*inputs)
        return mean_logits(model, inputs[0], self.tta)

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        logits = self._logits(model, batch)
        if logits.dim() > 2:  # a class per pixel
            return PredictedMaps(class_numbers(logits))
        return ClassProbabilities(logits.float().softmax(1))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return (new["accuracy"], -new["loss"]) > (old["accuracy"], -old["loss"])
