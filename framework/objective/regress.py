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
    """``model(batch[input])`` has the shape of ``batch[target]``, float. Also counts the mean absolute error. Better: lower loss."""

    def __init__(self, input: str, target: str, loss: str) -> None:  # noqa: A002
        if loss not in LOSSES:
            raise ConfigError(
                111, f"objective.loss = {loss}", "not a loss", f"choose {' or '.join(LOSSES)}"
            )
        self.input, self.target, self.loss = input, target, LOSSES[loss]

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        guess, target = model(batch[self.input]), batch[self.target]
        if guess.shape != target.shape:  # torch would broadcast, and learn nonsense
            raise ValueError(
                f"the model gives {tuple(guess.shape)}, {self.target} is {tuple(target.shape)}"
            )
        guess, target = guess.float(), target.float()
        loss = self.loss(guess, target)
        with torch.no_grad():
            absolute = (guess - target).abs().reshape(len(target), -1).mean(1).sum()
        return Outcome(loss, {"mae": absolute}, len(target))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]
