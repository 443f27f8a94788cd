"""Numbers or images from numbers or images: mean squared or mean absolute error to learn."""

from collections.abc import Callable, Mapping, Sequence
from typing import final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.prediction import PredictedNumbers, Predictions
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.model_inputs import for_target, prediction

LOSSES = {"mse": nn.functional.mse_loss, "l1": nn.functional.l1_loss}


def loss_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of this name. ConfigError C111 if there is none."""
    if name not in LOSSES:
        fix = f"choose {' or '.join(LOSSES)}"
        raise ConfigError(111, f"objective.loss = {name}", "not a loss", fix)
    return LOSSES[name]


def check_shapes(guess: Tensor, target: Tensor, name: str) -> None:
    """Raise ValueError for different shapes, which torch would broadcast, and learn nonsense."""
    if guess.shape != target.shape:
        what = f"the model gives {tuple(guess.shape)}"
        raise ValueError(f"{what}, {name} is {tuple(target.shape)}")


@final
class Regress:
    """The error between the model's result and a float target of its shape. Better: lower loss.

    If the target is one number per record, the result may be [B] or [B, 1]. Also counts the mean
    absolute error. ``input`` is the field that the model takes; ``loss`` is mse or l1.
    """

    def __init__(self, input: str, target: str, loss: str) -> None:  # noqa: A002
        self.input = input
        self.target = target
        self.loss = loss_of(loss)

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        target = batch[self.target].float()
        guess = for_target(prediction(model(batch[self.input])).float(), target)
        check_shapes(guess, target, self.target)
        loss = self.loss(guess, target)
        with torch.no_grad():
            absolute = (guess - target).abs().reshape(len(target), -1).mean(1).sum()
        return Outcome(loss, {"mae": absolute}, len(target), predictions=(guess, target))

    @property
    def inputs(self) -> Sequence[str]:
        return [self.input]

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        return PredictedNumbers(prediction(model(batch[self.input])).float())

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["loss"] < old["loss"]
