"""Boxes of objects in images: centers and sides to learn, the mean average precision to look at."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.prediction import PredictedBoxes, Predictions, ScoredBoxes
from framework.contracts.training import Outcome
from paceline_examples.average_precision import (
    THRESHOLDS,
    Boxes,
    average_precision,
    precision_counts,
)
from paceline_examples.detect_net import STRIDE

MOST_BOXES = 32  # that are suggested for an image
SPREAD = 1 / 6  # standard deviation of the bump at a center, as a part of the box's size
NEAR = 0.5  # places whose bump is at least so high learn the sides of the box
MOST_LOG = 6.0  # the largest logarithm of a distance, so that it stays finite


class _Targets(NamedTuple):
    """What a map of H x W places should say."""

    centers: Tensor  # 1 at the center of an object, less around it: float32 [B, classes, H, W]
    sides: Tensor  # distances to the sides of the nearest box, in places: float32 [B, 4, H, W]
    near: Tensor  # places that learn these distances: bool [B, H, W]
    counts: Tensor  # boxes of each image, at least 1: int64 [B]


@final
@dataclass
class Detect:
    """Focal loss of centers and IoU loss of sides, for ``DetectNet``. Better: higher ``map``.

    ``boxes`` names the boxes [B, N, 4] in pixels of ``input``, and ``target`` their classes [B, N].
    A row without area is no box. An image's losses are divided by its number of boxes.

    In evaluation, ``map50`` is the mean average precision at an IoU of 0.5, and ``map`` the mean of
    those at 0.5, 0.55, ... 0.95. ``average_precision.py`` says how exact they are.

    Source: Zhou et al., "Objects as Points", for the centers; Tian et al., "FCOS", for the sides.
    """

    input: str
    boxes: str
    target: str

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        image = batch[self.input]
        maps = model(image).float()
        num_classes = maps.shape[1] - 4
        logits, logs = maps.split([num_classes, 4], dim=1)
        truth = Boxes(batch[self.boxes].float(), batch[self.target].long())
        with torch.no_grad():
            targets = _targets(truth, logits)
        centers = _focal(logits, targets.centers).sum((1, 2, 3)) / targets.counts
        sides = _side_loss(logs, targets)
        totals: dict[str, Tensor] = {}
        if not model.training:
            guess, scores = suggested(maps.detach())
            totals = precision_counts(guess, scores, truth, num_classes)
        sums = {"centers": centers.detach(), "sides": sides.detach()}
        return Outcome((centers + sides).mean(), sums, totals=totals)

    @property
    def inputs(self) -> Sequence[str]:
        return [self.input]

    def predict(self, model: nn.Module, batch: Batch) -> Predictions:
        boxes, scores = suggested(model(batch[self.input]).float())
        parts = zip(boxes.corners, scores, boxes.classes, strict=True)
        chosen = [(own, score, label, score > 0) for own, score, label in parts]
        return PredictedBoxes(
            [
                ScoredBoxes(own[is_box], score[is_box], label[is_box])
                for own, score, label, is_box in chosen
            ]
        )

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        precision = average_precision(totals)
        return {
            "map": precision.mean().item(),
            "map50": precision[THRESHOLDS.index(0.5)].item(),
        }

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        return (new["map"], -new["loss"]) > (old["map"], -old["loss"])


def suggested(maps: Tensor) -> tuple[Boxes, Tensor]:
    """Return boxes in pixels, best first, and their scores [B, K]: the peaks of the centers.

    ``maps`` is what ``DetectNet`` returns.
    """
    scores = maps[:, :-4].sigmoid()
    is_peak = scores == nn.functional.max_pool2d(scores, 3, stride=1, padding=1)
    size = scores.shape[2] * scores.shape[3]
    flat = torch.where(is_peak, scores, 0.0).flatten(1)
    best, index = flat.topk(min(MOST_BOXES, flat.shape[1]))
    place = index % size
    corners = _corners(maps[:, -4:]).flatten(2)
    chosen = corners.gather(2, place.unsqueeze(1).expand(-1, 4, -1))
    return Boxes(chosen.transpose(1, 2) * STRIDE, index // size), best


def _corners(logs: Tensor) -> Tensor:
    """Return left, top, right and bottom, in places from the map's edge, from logs [B, 4, H, W]."""
    left, top, right, bottom = logs.clamp(max=MOST_LOG).exp().unbind(1)
    y, x = _middles(logs)
    return torch.stack([x - left, y - top, x + right, y + bottom], dim=1)


def _middles(maps: Tensor) -> tuple[Tensor, Tensor]:
    """Return y and x of the places' middles, both [H, W]."""
    height, width = maps.shape[2:]
    rows = torch.arange(height, device=maps.device) + 0.5
    columns = torch.arange(width, device=maps.device) + 0.5
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return y, x


def _targets(truth: Boxes, logits: Tensor) -> _Targets:
    """Return the targets for maps with the shape of ``logits`` [B, classes, H, W]."""
    # One more row, which is no box, so that there always is one.
    corners = nn.functional.pad(truth.corners, (0, 0, 0, 1)) / STRIDE
    classes = nn.functional.pad(truth.classes, (0, 1))[..., None, None]
    left, top, right, bottom = corners[..., None, None].unbind(2)
    y, x = _middles(logits)
    bumps = _bump(x, left, right) * _bump(y, top, bottom)  # [B, N, H, W]
    bumps = bumps * ((right > left) & (bottom > top))
    centers = torch.zeros_like(logits)
    centers.scatter_reduce_(1, classes.expand_as(bumps), bumps, "amax")
    highest, nearest = bumps.max(1, keepdim=True)
    distances = torch.stack([x - left, y - top, right - x, bottom - y], dim=1)
    index = nearest.unsqueeze(1).expand(-1, 4, -1, -1, -1)
    sides = distances.gather(2, index).squeeze(2)
    near = (highest.squeeze(1) >= NEAR) & (sides > 0).all(1)
    return _Targets(centers, sides, near, (truth.areas > 0).sum(1).clamp(min=1))


def _bump(middles: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return 1 for the middle [H, W] of the place that holds the center, and less around it."""
    center = ((start + end) / 2).floor() + 0.5
    far = (middles - center) / ((end - start) * SPREAD).clamp(min=1e-3)
    return torch.exp(-(far**2) / 2)


def _focal(logits: Tensor, target: Tensor) -> Tensor:
    """Return the focal loss of each place, reduced near centers. Source: "Objects as Points"."""
    score = logits.sigmoid()
    hit = -((1 - score) ** 2) * nn.functional.logsigmoid(logits)
    miss = -((1 - target) ** 4) * score**2 * nn.functional.logsigmoid(-logits)
    return torch.where(target == 1, hit, miss)


def _side_loss(logs: Tensor, targets: _Targets) -> Tensor:
    """Return 1 - IoU of the suggested and the true box, averaged over the near places: [B].

    Both boxes hold the place, so that they always overlap.
    """
    guess = logs.clamp(max=MOST_LOG).exp()
    sides = targets.sides.clamp(min=1e-3)
    both = _box_area(torch.minimum(guess, sides))
    overlap = both / (_box_area(guess) + _box_area(sides) - both)
    losses = torch.where(targets.near, 1 - overlap, 0.0).sum((1, 2))
    return losses / targets.near.sum((1, 2)).clamp(min=1)


def _box_area(sides: Tensor) -> Tensor:
    left, top, right, bottom = sides.unbind(1)
    return (left + right) * (top + bottom)
