"""The mean average precision (mAP) of boxes, from sums that add up over images and ranks.

Each score is put into one of ``NUM_BINS`` bins, and the boxes of a bin are counted. The result is
exactly the mAP of scores that are rounded down to 1 / ``NUM_BINS``, whatever the number of images,
batches and ranks. It differs from the mAP of the scores themselves only by the order of boxes whose
scores share a bin. Inside an image, boxes are matched in the order of the scores themselves.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

NUM_BINS = 1000
THRESHOLDS = tuple(percent / 100 for percent in range(50, 100, 5))  # of the IoU, as in COCO


class Boxes(NamedTuple):
    """Boxes of B images.

    Attributes:
        corners: Left, top, right and bottom: float32 [B, N, 4]. A row without area is no box.
        classes: int64 [B, N].
    """

    corners: Tensor
    classes: Tensor

    @property
    def areas(self) -> Tensor:
        """The area of each box, float32 [B, N]."""
        return _area(self.corners)


def precision_counts(
    guess: Boxes, scores: Tensor, truth: Boxes, num_classes: int
) -> dict[str, Tensor]:
    """Return the counts of some images, int64, which add up.

    Args:
        guess: The boxes that a model suggests, best first: [B, K].
        scores: Of these, from 0 to 1: float [B, K].
        truth: The boxes of the data: [B, N].
        num_classes: The classes are smaller than this.

    Returns:
        ``right`` [thresholds, classes, bins]: the suggested boxes that match a true one.
        ``suggested`` [classes, bins]: all suggested boxes.
        ``boxes`` [classes]: the true ones.
    """
    is_guess = guess.areas > 0
    bins = (scores * NUM_BINS).long().clamp(0, NUM_BINS - 1)
    places = guess.classes * NUM_BINS + bins
    size = num_classes * NUM_BINS
    right = [_counted(places, hits, size) for hits in matched(guess, truth).unbind(-1)]
    return {
        "right": torch.stack(right).view(-1, num_classes, NUM_BINS),
        "suggested": _counted(places, is_guess, size).view(num_classes, NUM_BINS),
        "boxes": _counted(truth.classes, truth.areas > 0, num_classes),
    }


def matched(guess: Boxes, truth: Boxes) -> Tensor:
    """Return which suggested boxes match a true one at each threshold, bool [B, K, thresholds].

    As in COCO, each suggested box in turn, best first, takes the true box of its class with the
    largest IoU among those that are not taken, if that IoU reaches the threshold.
    """
    same = guess.classes.unsqueeze(2) == truth.classes.unsqueeze(1)
    real = (truth.areas > 0).unsqueeze(1) & (guess.areas > 0).unsqueeze(2)
    iou = torch.where(same & real, intersection_over_union(guess.corners, truth.corners), 0.0)
    thresholds = torch.tensor(THRESHOLDS, device=iou.device).unsqueeze(1)
    images, num_guesses, num_boxes = iou.shape
    hits = torch.zeros(images, num_guesses, len(THRESHOLDS), dtype=torch.bool, device=iou.device)
    if not num_boxes:
        return hits
    free = torch.ones(images, len(THRESHOLDS), num_boxes, dtype=torch.bool, device=iou.device)
    for number in range(num_guesses):
        candidates = torch.where(free, iou[:, number].unsqueeze(1), 0.0)
        best, chosen = candidates.max(dim=2, keepdim=True)
        hit = best >= thresholds
        hits[:, number] = hit.squeeze(2)
        free.scatter_(2, chosen, free.gather(2, chosen) & ~hit)
    return hits


def average_precision(counts: Mapping[str, Tensor]) -> Tensor:
    """Return the average precision at each threshold, averaged over the classes that have boxes.

    This is the area under the curve of precision over recall, with each precision raised to the
    largest at an equal or larger recall. It is 0 if there are no boxes.

    Args:
        counts: Sums of what ``precision_counts`` returns.

    Returns:
        float64 [thresholds].
    """
    boxes = counts["boxes"].double()
    # from the best scores to the worst
    right = counts["right"].double().flip(2).cumsum(2)
    suggested = counts["suggested"].double().flip(1).cumsum(1)
    precision = right / suggested.clamp(min=1)
    precision = precision.flip(2).cummax(2).values.flip(2)
    recall = right / boxes.clamp(min=1).unsqueeze(1)
    gained = recall.diff(dim=2, prepend=torch.zeros_like(recall[:, :, :1]))
    areas = (gained * precision).sum(2)
    occurs = boxes > 0
    return areas[:, occurs].sum(1) / occurs.sum().clamp(min=1)


def intersection_over_union(some: Tensor, others: Tensor) -> Tensor:
    """Return the IoU of each of [B, K, 4] with each of [B, N, 4]: float [B, K, N]."""
    first, second = some.unsqueeze(2), others.unsqueeze(1)
    starts = torch.maximum(first[..., :2], second[..., :2])
    ends = torch.minimum(first[..., 2:], second[..., 2:])
    both = (ends - starts).clamp(min=0).prod(-1)
    either = _area(first) + _area(second) - both
    return both / either.clamp(min=1e-9)


def _area(corners: Tensor) -> Tensor:
    return (corners[..., 2:] - corners[..., :2]).clamp(min=0).prod(-1)


def _counted(places: Tensor, chosen: Tensor, size: int) -> Tensor:
    """Return how often each place below ``size`` is chosen: int64 [size]."""
    counts = torch.zeros(size, dtype=torch.int64, device=places.device)
    return counts.scatter_add_(0, places.flatten(), chosen.long().flatten())
