"""One class per record: focal loss, in which records that are already right count little.

Source: Lin et al., "Focal loss for dense object detection", 2017.
"""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.class_scores import (
    IGNORE_INDEX,
    ClassObjective,
    ClassWeights,
    mean_of_counted,
)

LEAST = 1e-6  # what is missing to a probability of 1, so that its power has a gradient


@final
class Focal(ClassObjective):
    """Cross-entropy times ``(1 - p) ** gamma``, with the probability p of the right class.

    Better: higher accuracy, then lower loss.

    Args:
        input: The field that the model takes, or several.
        target: The field of classes, integers [B] or [B, 1].
        gamma: How much less a record counts whose class is probable; 0: cross-entropy.
        class_weights: A weight for each class, or None.
        ignore_index: The number of labels that do not count.
    """

    def __init__(
        self,
        input: str | Sequence[str],  # noqa: A002
        target: str,
        gamma: float,
        class_weights: Sequence[float] | None = None,
        ignore_index: int = IGNORE_INDEX,
    ) -> None:
        if gamma < 0:
            raise ConfigError(317, f"objective.gamma = {gamma}", "must be 0 or more", "correct it")
        self.input = input
        self.target = target
        self.gamma = gamma
        self.ignore_index = ignore_index
        self._weights = ClassWeights(class_weights)

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = self.logits(model, batch)
        target = self.labels(batch, logits)
        is_shares = target.is_floating_point()
        losses = nn.functional.cross_entropy(
            logits.float(),
            target,
            ignore_index=IGNORE_INDEX if is_shares else self.ignore_index,
            reduction="none",
        )
        losses = losses * (1 - (-losses).exp()).clamp(min=LEAST) ** self.gamma
        weights = self._weights.on(logits.device, logits.shape[1])
        if weights is not None:
            if is_shares:
                losses = losses * (target @ weights)
            else:
                counted = target != self.ignore_index
                losses = losses * weights[torch.where(counted, target, 0)]
        loss = mean_of_counted(losses, target, self.ignore_index)
        return self.outcome(model, loss, logits, target)
