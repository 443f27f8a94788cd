"""One class per record: focal loss, in which records that are already right count little."""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.scores import IGNORE_INDEX, ClassObjective, ClassWeights

LEAST = 1e-6  # what is missing to a probability of 1, so that its power has a gradient


@final
class Focal(ClassObjective):
    """Cross-entropy times ``(1 - p) ** gamma``, with the probability p of the right class.

    ``class_weights`` has a weight for each class, or is None.
    Source: Lin et al., "Focal loss for dense object detection", 2017.
    """

    def __init__(
        self,
        input: str | Sequence[str],  # noqa: A002
        target: str,
        gamma: float,
        class_weights: Sequence[float] | None = None,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        super().__init__(input, target, ignore_index)
        if gamma < 0:
            raise ConfigError(317, f"objective.gamma = {gamma}", "must be 0 or more", "correct it")
        self.gamma = gamma
        self._weights = ClassWeights(class_weights)

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = self.logits(model, batch)
        target = self.labels(batch, logits)
        losses = self.losses(logits.float(), target)
        losses = losses * (1 - (-losses).exp()).clamp(min=LEAST) ** self.gamma
        weights = self._weights.on(logits)
        if weights is not None and target.is_floating_point():
            losses = losses * (target @ weights)
        elif weights is not None:
            losses = losses * weights[torch.where(self.counted(target), target, 0)]
        return self.outcome(model, self.mean(losses, target), logits, target)
