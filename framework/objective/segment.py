"""One class per pixel: cross-entropy and Dice to learn, the mean IoU over classes to look at."""

from collections.abc import Mapping
from typing import final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.class_labels import LabelRange, class_labels
from framework.contracts.prediction import PredictedMaps, Predictions, class_numbers
from framework.contracts.records import IGNORE
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.objective.scores import Ranked, predicted


@final
class Segment(Ranked):
    """Cross-entropy over the model's logits [B, classes, H, W]. Better: higher ``iou``.

    ``target`` is a label map: integers [B, 1, H, W] or [B, H, W]. Its pixels of ``IGNORE``
    (255) have no class, and count in nothing. The loss is the mean over the others, and ``pixels``
    is the share of them whose class is right. ``iou`` is intersection over union, summed over the
    pixels of all records and ranks, averaged over the classes that occur in target or guess.

    ``dice`` is the weight of the Dice loss beside the cross-entropy: if it is above 0, both are
    logged. ``ignore`` is another class whose pixels count as those of ``IGNORE``.
    Source of the Dice loss: Milletari et al., "V-Net", 2016.
    """

    ranking = ("iou", "-loss", "pixels")

    def __init__(self, input: str, target: str, dice: float = 0.0, ignore: int = IGNORE) -> None:  # noqa: A002
        if dice < 0:
            raise ConfigError(318, f"objective.dice = {dice}", "must be 0 or more", "correct it")
        self.inputs = [input]
        self.target = target
        self.dice = dice
        self.ignore = ignore
        self._num_classes = 0  # that the model tells apart, once it was called

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = predicted(model, batch, self.inputs)
        target = class_labels(batch[self.target], 3).long()
        self._num_classes = logits.shape[1]
        if logits.dim() != 4 or logits.shape[2:] != target.shape[1:]:
            what = f"the model gives {tuple(logits.shape)}"
            raise ValueError(f"{what}, {self.target} is {tuple(target.shape)}")
        if self.ignore != IGNORE:
            target = torch.where(target == self.ignore, IGNORE, target)
        counted = target != IGNORE
        count = counted.sum()
        losses = nn.functional.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none")
        guess = logits.detach().argmax(1)
        totals = {"confusion": confusion_of(guess, target, logits.shape[1])}
        outcome = Outcome(losses.sum() / count.clamp(min=1), {}, count, totals)
        if self.dice:
            # a record weighs as much as its pixels, so that batches may be cut in any way
            # A class that a record lacks wants a probability of 0 at each pixel that counts.
            mask = counted.unsqueeze(1)
            probabilities = logits.float().softmax(1) * mask
            truth = torch.zeros_like(probabilities)
            places = torch.where(mask, target.unsqueeze(1), 0)
            truth.scatter_(1, places, mask.to(truth.dtype))
            both = (probabilities * truth).sum((2, 3))
            either = probabilities.sum((2, 3)) + truth.sum((2, 3))
            # 1: a class that is nowhere is right
            dice_losses = (1 - (2 * both + 1) / (either + 1)).mean(1)  # of each record
            dice = (dice_losses * counted.sum((1, 2))).sum() / count.clamp(min=1)
            outcome.losses = {"cross_entropy": outcome.loss, "dice": dice}
            outcome.loss = outcome.loss + self.dice * dice
        if not model.training:
            outcome.predictions = (guess[counted], target[counted])
        return outcome

    @property
    def label_range(self) -> LabelRange | None:
        if not self._num_classes:
            return None
        return LabelRange(self.target, self._num_classes, (IGNORE, self.ignore), "objective.ignore")

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        return PredictedMaps(class_numbers(predicted(model, batch, self.inputs)))

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        confusion = totals["confusion"]
        both = confusion.diag()
        either = confusion.sum(0) + confusion.sum(1) - both
        occurs = either > 0
        iou = (both[occurs] / either[occurs]).sum() / occurs.sum().clamp(min=1)
        return {"iou": iou.item(), "pixels": (both.sum() / confusion.sum().clamp(min=1)).item()}


def confusion_of(guess: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """Return how many pixels, except those of ``IGNORE``, have each class and guess: int64."""
    counted = target != IGNORE
    # Without a selection or torch.bincount, which wait for the device.
    place = torch.where(counted, target, 0) * num_classes + guess
    counts = torch.zeros(num_classes**2, dtype=torch.int64, device=target.device)
    counts.scatter_add_(0, place.flatten(), counted.long().flatten())
    return counts.view(num_classes, num_classes)
