"""Images from damaged images: the error to learn, the peak signal-to-noise ratio to look at."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.errors import ConfigError

LOSSES = {"l1": nn.functional.l1_loss, "mse": nn.functional.mse_loss}
LEAST = 1e-10  # mean squared error, as a part of the peak's square, below which 100 dB are said


@final
class Restore:
    """``model(batch[input])`` has the shape of ``batch[target]``: [B, ...], float in [0, ``peak``], or uint8, taken as [0, 1].

    Counts, as the mean over the images of each one's own, ``psnr`` of the model's result cut to [0, ``peak``] and, where input and
    target are of one shape, ``input_psnr`` of what came in: in dB, so that the gain is the difference. Better: higher ``psnr``.
    """

    def __init__(self, input: str, target: str, loss: str, peak: float) -> None:  # noqa: A002
        if loss not in LOSSES:
            raise ConfigError(
                111, f"objective.loss = {loss}", "not a loss", f"choose {' or '.join(LOSSES)}"
            )
        self.input, self.target, self.loss, self.peak = input, target, LOSSES[loss], peak

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        damaged, target = _floats(batch[self.input]), _floats(batch[self.target])
        guess = model(damaged)
        if guess.shape != target.shape:  # torch would broadcast, and learn nonsense
            raise ValueError(
                f"the model gives {tuple(guess.shape)}, {self.target} is {tuple(target.shape)}"
            )
        guess = guess.float()
        loss = self.loss(guess, target)
        with torch.no_grad():
            sums = {"psnr": self._psnr(guess.clamp(0, self.peak), target)}
            if damaged.shape == target.shape:
                sums["input_psnr"] = self._psnr(damaged, target)
        return Outcome(loss, sums, len(target))

    def _psnr(self, image: Tensor, target: Tensor) -> Tensor:
        """Of each image, in dB: float32 [B]."""
        error = (image - target).square().flatten(1).mean(1) / self.peak**2
        return -10 * torch.log10(error.clamp(min=LEAST))

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return new["psnr"] > old["psnr"]


def _floats(image: Tensor) -> Tensor:
    """float32; uint8 as a part of 255."""
    return image.float() / 255 if image.dtype == torch.uint8 else image.float()
