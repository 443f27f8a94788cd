"""Images from damaged images: the error to learn, the peak signal-to-noise ratio to look at."""

from typing import final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.prediction import PredictedImages, Predictions
from framework.contracts.training import Outcome
from framework.objective.regress import loss_of
from framework.objective.scores import Ranked, check_shapes, prediction

LEAST = 1e-10  # mean squared error, as a part of the peak's square, that counts as 100 dB


@final
class Restore(Ranked):
    """The l1 or mse between the model's result and an undamaged image. Better: higher ``psnr``.

    Counts ``psnr`` of the result, cut to [0, ``peak``], as the mean over the images, in dB. If
    input and target have one shape, it also counts ``input_psnr``: the gain is the difference.
    Both images are [B, ...], float in [0, ``peak``], or uint8, taken as [0, 1].
    """

    ranking = ("psnr", "-loss")

    def __init__(self, input: str, target: str, loss: str, peak: float) -> None:  # noqa: A002
        self.inputs = [input]
        self.target = target
        self.loss = loss_of(loss)
        self.peak = peak

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        damaged = _floats(batch[self.inputs[0]])
        target = _floats(batch[self.target])
        guess = prediction(model(damaged))
        check_shapes(guess, target, self.target)
        guess = guess.float()
        loss = self.loss(guess, target)
        with torch.no_grad():
            sums = {"psnr": self._psnr(guess.clamp(0, self.peak), target)}
            if damaged.shape == target.shape:
                sums["input_psnr"] = self._psnr(damaged, target)
        return Outcome(loss, sums, predictions=(guess, target))

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        guess = prediction(model(_floats(batch[self.inputs[0]]))).float()
        return PredictedImages(guess.clamp(0, self.peak) / self.peak)

    def _psnr(self, image: Tensor, target: Tensor) -> Tensor:
        """Return the ratio of each image in dB: float32 [B]."""
        error = (image - target).square().flatten(1).mean(1) / self.peak**2
        return -10 * torch.log10(error.clamp(min=LEAST))


def _floats(image: Tensor) -> Tensor:
    return image.float() / 255 if image.dtype == torch.uint8 else image.float()
