"""One class per record: cross-entropy to learn, accuracy to look at."""

from collections.abc import Mapping
from typing import final

from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome


@final
class Classify:
    """``model(batch[input])`` gives logits [B, classes]; ``batch[target]`` is int64 [B], or float [B, classes] of shares (mixup), of
    which the largest is the one to be right about. Better: higher accuracy, then lower loss.
    """

    def __init__(self, input: str, target: str, label_smoothing: float) -> None:  # noqa: A002  # the name users read in YAML
        self.input, self.target, self.label_smoothing = input, target, label_smoothing

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits, target = model(batch[self.input]), batch[self.target]
        loss = nn.functional.cross_entropy(logits, target, label_smoothing=self.label_smoothing)
        correct = logits.argmax(1) == (
            target.argmax(1) if target.is_floating_point() else target
        )  # integers: no graph grows here
        if correct.dim() > 1:  # label maps: of each record, the share of its pixels
            correct = correct.float().flatten(1).mean(1)
        return Outcome(loss, {"accuracy": correct}, len(target))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return (new["accuracy"], -new["loss"]) > (old["accuracy"], -old["loss"])
