"""Numbers or images from numbers or images: mean squared or mean absolute error to learn."""

from collections.abc import Callable, Mapping
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
    absolute error. If the target is a number or a vector, a validation has ``r2``, too: the share
    of the target's variance that is explained, as the mean over the numbers of a vector.

    Args:
        input: The field that the model takes.
        target: The field that is right.
        loss: mse or l1.
    """

    def __init__(self, input: str, target: str, loss: str) -> None:  # noqa: A002
        self.input = input
        self.inputs = [input]
        self.target = target
        self.loss = loss_of(loss)

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        target = batch[self.target].float()
        guess = for_target(prediction(model(batch[self.input])).float(), target)
        check_shapes(guess, target, self.target)
        loss = self.loss(guess, target)
        with torch.no_grad():
            absolute = (guess - target).abs().reshape(len(target), -1).mean(1).sum()
            totals: dict[str, Tensor] = {}
            if not model.training and target.dim() <= 2:
                totals = moments(guess.double(), target.double())
        sums = {"mae": absolute}
        return Outcome(loss, sums, totals=totals, predictions=(guess, target))

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        return PredictedNumbers(prediction(model(batch[self.input])).float())

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        return {"r2": explained(totals)}

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return _rank(new) > _rank(old)


def moments(guess: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Return sums over the records, from which ``explained`` follows: [] or [numbers] each."""
    return {
        "records": torch.full_like(target[:1].sum(0), len(target)),
        "targets": target.sum(0),
        "squares": target.square().sum(0),
        "errors": (guess - target).square().sum(0),
    }


def explained(totals: Mapping[str, Tensor]) -> float:
    """Return the coefficient of determination, as scikit-learn's ``r2_score`` does.

    A target that does not vary is explained (1) if no guess is wrong, else not (0).
    """
    variation = totals["squares"] - totals["targets"].square() / totals["records"].clamp(min=1)
    errors = totals["errors"]
    varies = variation > 0
    share = 1 - errors / torch.where(varies, variation, 1.0)
    return torch.where(varies, share, (errors == 0).double()).mean().item()


def _rank(means: Mapping[str, float]) -> tuple[float, ...]:
    """Return what makes one validation better than another: the first that differs."""
    return -means["loss"], means.get("r2", 0.0), -means.get("mae", 0.0)
