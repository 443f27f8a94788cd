"""One class per record, or per pixel: cross-entropy to learn, accuracy to look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.class_scores import ClassObjective, ClassWeights
from framework.objective.model_inputs import model_inputs, prediction
from framework.objective.tta import check_tta, mean_logits


@final
@dataclass
class Classify(ClassObjective):
    """Cross-entropy over the model's logits [B, classes]. Better: higher accuracy, then lower loss.

    ``input`` is the field that the model takes, or several, such as sounds and their lengths.

    ``target`` is int64 [B], or float [B, classes] of shares (mixup), of which the largest is right.

    ``tta`` names the test-time augmentation, see ``framework.objective.tta``. It is used while the
    model is in evaluation mode.

    ``class_weights`` has the weight of each class in the loss; None: all weigh the same.
    """

    input: str | Sequence[str]
    target: str
    label_smoothing: float
    tta: str = "none"
    class_weights: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self._weights = ClassWeights(self.class_weights)
        check_tta(self.tta)
        if self.tta != "none" and not isinstance(self.input, str):
            what = "changes images, and the model takes several fields"
            raise ConfigError(277, f"objective.tta = {self.tta}", what, "set objective.tta=none")

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = self.logits(model, batch)
        target = batch[self.target]
        loss = self._weights.cross_entropy(logits, target, self.label_smoothing)
        return self.outcome(model, loss, logits, target)

    def logits(self, model: nn.Module, batch: Batch) -> Tensor:
        inputs = model_inputs(batch, self.input)
        if model.training or self.tta == "none":
            return prediction(model(*inputs))
        return mean_logits(model, inputs[0], self.tta)
