"""Numbers or images from numbers or images: mean squared or mean absolute error to learn."""

from collections.abc import Callable, Mapping
from typing import final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.prediction import PredictedNumbers, Predictions
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.scores import Ranked, check_shapes, for_target, predicted

LOSSES = {"mse": nn.functional.mse_loss, "l1": nn.functional.l1_loss}


def loss_of(name: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of this name. ConfigError C111 if there is none."""
    if name not in LOSSES:
        fix = f"choose {' or '.join(LOSSES)}"
        raise ConfigError(111, f"objective.loss = {name}", "not a loss", fix)
    return LOSSES[name]


@final
class Regress(Ranked):
    """The error between the model's result and a float target of its shape. Better: lower loss.

    If the target is one number per record, the result may be [B] or [B, 1]. Also counts the mean
    absolute error. If the target is a number or a vector, a validation has ``r2``, too: the share
    of the target's variance that is explained, as the mean over the numbers of a vector.
    """

    ranking = ("-loss", "r2", "-mae")

    def __init__(self, input: str, target: str, loss: str) -> None:  # noqa: A002
        self.inputs = [input]
        self.target = target
        self.loss = loss_of(loss)

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        target = batch[self.target].float()
        guess = for_target(predicted(model, batch, self.inputs).float(), target)
        check_shapes(guess, target, self.target)
        loss = self.loss(guess, target)
        totals: dict[str, Tensor] = {}
        with torch.no_grad():
            mae = (guess - target).abs().reshape(len(target), -1).mean(1).sum()
            if not model.training and target.dim() <= 2:
                wide = target.double()
                totals = {  # sums over the records: [] or [numbers] each
                    "records": torch.full_like(wide[:1].sum(0), len(wide)),
                    "targets": wide.sum(0),
                    "squares": wide.square().sum(0),
                    "errors": (guess.double() - wide).square().sum(0),
                }
        return Outcome(loss, {"mae": mae}, totals=totals, predictions=(guess, target))

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        return PredictedNumbers(predicted(model, batch, self.inputs).float())

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Return R2 as scikit-learn does: 1 or 0 for a target that does not vary."""
        variation = totals["squares"] - totals["targets"].square() / totals["records"].clamp(min=1)
        varies = variation > 0
        share = 1 - totals["errors"] / torch.where(varies, variation, 1.0)
        share = torch.where(varies, share, (totals["errors"] == 0).double())
        return {"r2": share.mean().item()}
