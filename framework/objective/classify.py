"""One class per record, or per pixel: cross-entropy to learn, accuracy to look at."""

from collections.abc import Mapping
from typing import final

from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome


@final
class Classify:
    """Cross-entropy. Better: higher accuracy, then lower loss.

    Attributes:
        input: The field that the model takes. The model returns logits [B, classes].
        target: int64 [B], or float [B, classes] of shares (mixup), of which the largest is right.
        label_smoothing: As in ``torch.nn.CrossEntropyLoss``.

    """

    def __init__(self, input: str, target: str, label_smoothing: float) -> None:  # noqa: A002
        self.input = input
        self.target = target
        self.label_smoothing = label_smoothing

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = model(batch[self.input])
        target = batch[self.target]
        loss = nn.functional.cross_entropy(logits, target, label_smoothing=self.label_smoothing)
        classes = target
        if target.is_floating_point():
            classes = target.argmax(1)
        correct = logits.argmax(1) == classes  # integers: no graph grows here
        if correct.dim() > 1:  # label maps: of each record, the share of its pixels
            correct = correct.float().flatten(1).mean(1)
        return Outcome(loss, {"accuracy": correct}, len(target))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return (new["accuracy"], -new["loss"]) > (old["accuracy"], -old["loss"])
