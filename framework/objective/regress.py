"""Numbers or images from numbers or images: mean squared or mean absolute error to learn."""

from collections.abc import Mapping
from typing import final

import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.errors import ConfigError

LOSSES = {"mse": nn.functional.mse_loss, "l1": nn.functional.l1_loss}


@final
class Regress:
    """The error between the model's result and a target of its shape. Better: lower loss.

    Also counts the mean absolute error.

    Attributes:
        input: The field that the model takes.
        target: The field it should return, float.
        loss: mse or l1.

    """

    def __init__(self, input: str, target: str, loss: str) -> None:  # noqa: A002
        if loss not in LOSSES:
            fix = f"choose {' or '.join(LOSSES)}"
            raise ConfigError(111, f"objective.loss = {loss}", "not a loss", fix)
        self.input = input
        self.target = target
        self.loss = LOSSES[loss]

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        guess = model(batch[self.input]).float()
        target = batch[self.target].float()
        if guess.shape != target.shape:  # torch would broadcast, and learn nonsense
            what = f"the model gives {tuple(guess.shape)}"
            raise ValueError(f"{what}, {self.target} is {tuple(target.shape)}")
        loss = self.loss(guess, target)
        with torch.no_grad():
            absolute = (guess - target).abs().reshape(len(target), -1).mean(1).sum()
        return Outcome(loss, {"mae": absolute}, len(target))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]
