"""One class per record, or per pixel: cross-entropy to learn, accuracy to look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome


@final
@dataclass
class Classify:
    """Cross-entropy over the model's logits [B, classes]. Better: higher accuracy, then lower loss.

    ``target`` is int64 [B], or float [B, classes] of shares (mixup), of which the largest is right.
    """

    input: str
    target: str
    label_smoothing: float

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
