"""One class per record, learned from labels and from the predictions of a teacher."""

from collections.abc import Sequence
from typing import final

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.scores import IGNORE_INDEX, ClassObjective, check_shapes, predicted


@final
class Distill(ClassObjective):
    """Cross-entropy with the labels, and the divergence from the teacher's probabilities.

    The loss is ``(1 - share) * labels + share * teacher``, both of which are logged.
    Source: Hinton et al., "Distilling the knowledge in a neural network", 2015.

    Args:
        teacher: A model with logits of the same shape. It is not trained.
        weights: The file of the teacher's weights, which whoever builds the objective loads.
        share: The share of the teacher in the loss, 0 to 1.
        temperature: What the logits are divided by before they become probabilities.
        label_smoothing: The share of the labels' cross-entropy that all classes have alike, 0 to 1.
    """

    def __init__(
        self,
        input: str | Sequence[str],  # noqa: A002
        target: str,
        teacher: nn.Module | None,
        weights: str | None,
        share: float,
        temperature: float,
        ignore_index: int = IGNORE_INDEX,
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(input, target, ignore_index)
        if not isinstance(teacher, nn.Module):
            fix = "give objective.teacher={_target_: ..., num_classes: auto}"
            raise ConfigError(319, f"objective.teacher = {teacher}", "is not a model", fix)
        for key, value in (("share", share), ("label_smoothing", label_smoothing)):
            if not 0 <= value <= 1:
                raise ConfigError(319, f"objective.{key} = {value}", "must be 0 to 1", "correct it")
        if temperature <= 0:
            where = f"objective.temperature = {temperature}"
            raise ConfigError(319, where, "must be above 0", "correct it")
        self.teacher = teacher.eval().requires_grad_(False)
        self.weights = weights
        self.share = share
        self.temperature = temperature
        self.label_smoothing = label_smoothing
        self._device: torch.device | None = None

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = self.logits(model, batch).float()
        target = self.labels(batch, logits)
        if self._device != logits.device:
            self._device = logits.device
            self.teacher.to(logits.device)
        with torch.no_grad():
            teacher_logits = predicted(self.teacher, batch, self.inputs).float()
        check_shapes(logits, teacher_logits, "the teacher's")
        losses = self.losses(logits, target, label_smoothing=self.label_smoothing)
        of_labels = self.mean(losses, target)
        divergences = nn.functional.kl_div(
            (logits / self.temperature).log_softmax(1),
            (teacher_logits / self.temperature).log_softmax(1),
            reduction="none",
            log_target=True,
        ).sum(1)
        of_teacher = self.temperature**2 * self.mean(divergences, target)
        loss = (1 - self.share) * of_labels + self.share * of_teacher
        outcome = self.outcome(model, loss, logits, target)
        outcome.losses = {"labels": of_labels, "teacher": of_teacher}
        return outcome
