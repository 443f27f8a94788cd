"""One class per pixel: cross-entropy to learn, the mean IoU over the classes to look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.prediction import PredictedMaps, Predictions, class_numbers
from framework.contracts.records import IGNORE
from framework.contracts.training import Outcome


@final
@dataclass
class Segment:
    """Cross-entropy over the model's logits [B, classes, H, W]. Better: higher ``iou``.

    ``target`` is a label map: uint8 [B, 1, H, W], or integers [B, H, W]. Its pixels of ``IGNORE``
    (255) have no class: they add nothing to the loss, which is the mean over all pixels, and do not
    count in the metrics. ``pixels`` is the share of the others whose class is right.

    ``iou`` is intersection over union, summed over the pixels of all records and ranks, of each
    class, averaged over the classes that occur in target or guess. This is exact.
    """

    input: str
    target: str

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        logits = model(batch[self.input])
        target = batch[self.target].long()
        if target.dim() == 4:
            target = target.squeeze(1)
        if logits.dim() != 4 or logits.shape[2:] != target.shape[1:]:
            what = f"the model gives {tuple(logits.shape)}"
            raise ValueError(f"{what}, {self.target} is {tuple(target.shape)}")
        # Not the mean over pixels with a class: then batches would not weigh what they hold.
        losses = nn.functional.cross_entropy(logits, target, ignore_index=IGNORE, reduction="none")
        confusion = confusion_of(logits.detach().argmax(1), target, logits.shape[1])
        return Outcome(losses.mean(), {}, len(target), {"confusion": confusion})

    @property
    def inputs(self) -> Sequence[str]:
        return [self.input]

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        return PredictedMaps(class_numbers(model(batch[self.input])))

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        confusion = totals["confusion"]
        both = confusion.diag()
        either = confusion.sum(0) + confusion.sum(1) - both
        occurs = either > 0
        iou = (both[occurs] / either[occurs]).sum() / occurs.sum().clamp(min=1)
        return {"iou": iou.item(), "pixels": (both.sum() / confusion.sum().clamp(min=1)).item()}

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return (new["iou"], -new["loss"]) > (old["iou"], -old["loss"])


def confusion_of(guess: Tensor, target: Tensor, num_classes: int) -> Tensor:
    """Return how many pixels of each class have each guess: int64 [num_classes, num_classes].

    ``guess`` and ``target`` are int64 of one shape. Pixels of ``IGNORE`` are left out.
    """
    counted = target != IGNORE
    # Without a selection or torch.bincount, which wait for the device.
    place = torch.where(counted, target, 0) * num_classes + guess
    counts = torch.zeros(num_classes**2, dtype=torch.int64, device=target.device)
    counts.scatter_add_(0, place.flatten(), counted.long().flatten())
    return counts.view(num_classes, num_classes)
