"""What the examples detect: the precision of boxes, and the objective."""

import numpy as np
import pytest
import torch
from paceline_examples.average_precision import (
    NUM_BINS,
    THRESHOLDS,
    Boxes,
    average_precision,
    matched,
    precision_counts,
)
from paceline_examples.detect_net import STRIDE
from paceline_examples.detect_objective import Detect, suggested
from torch import nn

NUM_CLASSES = 3


def corners(random, *shape):
    starts = random.uniform(0, 20, (*shape, 2))
    return np.concatenate([starts, starts + random.uniform(3, 12, (*shape, 2))], axis=-1)


def scenes(seed=0, images=40, boxes=4, guesses=8):
    """Return guesses (boxes, labels and scores) and the truth (boxes and classes).

    Some guesses are near a true box. An image's guesses are in the order of their scores.
    """
    random = np.random.default_rng(seed)
    truth = corners(random, images, boxes)
    classes = random.integers(0, NUM_CLASSES, (images, boxes))
    truth[random.uniform(size=(images, boxes)) < 0.3] = 0  # rows that are no boxes
    guess = corners(random, images, guesses)
    labels = random.integers(0, NUM_CLASSES, (images, guesses))
    near = random.integers(0, boxes, (images, guesses - 3))
    for image in range(images):
        guess[image, 3:] = truth[image, near[image]] + random.normal(0, 0.7, (guesses - 3, 4))
        labels[image, 3:] = classes[image, near[image]]
    scores = -np.sort(-random.beta(2, 2, (images, guesses)), axis=1)
    mixed = random.permuted(np.tile(np.arange(guesses), (images, 1)), axis=1)
    guess = np.take_along_axis(guess, mixed[..., None], 1)
    labels = np.take_along_axis(labels, mixed, 1)
    return [torch.from_numpy(array) for array in (guess, labels, scores, truth, classes)]


def counts(parts):
    guess, labels, scores, truth, classes = parts
    return precision_counts(
        Boxes(guess.float(), labels), scores, Boxes(truth.float(), classes), NUM_CLASSES
    )


def area(box):
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])


def overlap(some, other):
    both = area([*np.maximum(some, other)[:2], *np.minimum(some, other)[2:]])
    return both / (area(some) + area(other) - both)


def hits_of(guesses, truths, threshold):
    """Return which of an image's guesses of a class hit, best first: box by box."""
    free, hits = list(truths), []
    for guess in guesses:
        overlaps = [overlap(guess, box) for box in free]
        hits.append(bool(overlaps) and max(overlaps) >= threshold)
        if hits[-1]:
            free.pop(int(np.argmax(overlaps)))
    return hits


def by_brute_force(parts, threshold, rounded):
    """Return the mAP of a list of all guesses, sorted by score and cut at every score."""
    guess, labels, scores, truth, classes = (part.float().numpy() for part in parts)
    results = []
    for number in range(NUM_CLASSES):
        found_scores, hits, num_boxes = [], [], 0
        for image in range(len(guess)):
            mine = (labels[image] == number) & np.array([area(box) > 0 for box in guess[image]])
            real = (classes[image] == number) & np.array([area(box) > 0 for box in truth[image]])
            hits += hits_of(guess[image][mine], truth[image][real], threshold)
            found_scores += scores[image][mine].tolist()
            num_boxes += int(real.sum())
        levels = np.array(found_scores)
        if rounded:
            levels = np.floor(levels.astype(np.float32) * np.float32(NUM_BINS))
        right = np.array(hits)
        points = [
            (right[levels >= level].sum() / num_boxes, right[levels >= level].mean())
            for level in sorted(set(levels.tolist()), reverse=True)
        ]
        before = total = 0.0
        for place, (recall, _) in enumerate(points):
            total += (recall - before) * max(precision for _, precision in points[place:])
            before = recall
        results.append(total)
    return float(np.mean(results))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("threshold", [0.5, 0.75])
def test_it_is_the_map_of_rounded_scores_by_brute_force(seed, threshold):
    parts = scenes(seed)
    result = average_precision(counts(parts))[THRESHOLDS.index(threshold)].item()
    assert 0.1 < result < 0.9
    assert result == pytest.approx(by_brute_force(parts, threshold, rounded=True), rel=1e-12)


def boxes(*rows, label=0):
    return Boxes(torch.tensor([rows]).float(), torch.full((1, len(rows)), label))


def test_a_true_box_is_taken_once_and_by_the_best_score():
    truth, guess = boxes([0, 0, 4, 4]), boxes([0, 0, 4, 3], [0, 0, 4, 4])
    assert matched(guess, truth)[0, :, 0].tolist() == [True, False]
    assert matched(guess, truth)[0, :, -1].tolist() == [False, True]


def test_boxes_of_another_class_and_rows_without_area_match_nothing():
    box = boxes([0, 0, 4, 4])
    for guess, truth in (
        (boxes([0, 0, 4, 4], label=1), box),
        (box, boxes([0, 0, 0, 0])),
        (boxes([2, 2, 2, 2]), boxes([0, 0, 4, 4])),
    ):
        assert not matched(guess, truth).any()


def test_images_without_a_box_count_every_suggestion_as_wrong():
    guess, nothing = boxes([0, 0, 4, 4]), Boxes(torch.zeros(1, 0, 4), torch.zeros(1, 0).long())
    result = precision_counts(guess, torch.tensor([[0.5]]), nothing, 1)
    assert (result["suggested"].sum(), result["right"].sum(), result["boxes"].sum()) == (1, 0, 0)
    assert average_precision(result).tolist() == [0.0] * len(THRESHOLDS)


# the objective


BOXES = torch.tensor([[[4.0, 8, 20, 20], [30, 20, 40, 44]], [[8.0, 8, 24, 40], [0, 0, 0, 0]]])
BATCH = {"image": torch.ones(2, 3, 48, 48), "boxes": BOXES, "label": torch.tensor([[1, 0], [2, 0]])}


class Fixed(nn.Module):
    """A model that returns its weights, whatever the images are."""

    def __init__(self, maps):
        super().__init__()
        self.maps = nn.Parameter(maps)

    def forward(self, image):
        return self.maps[: len(image)]


def perfect():
    """Return maps that say exactly what the batch holds."""
    maps = torch.zeros(2, 7, 12, 12)
    maps[:, :3] = -20.0
    for image, place in ((0, 0), (0, 1), (1, 0)):
        left, top, right, bottom = BOXES[image, place] / STRIDE
        x, y = int((left + right) / 2), int((top + bottom) / 2)
        maps[image, BATCH["label"][image, place], y, x] = 20.0
        for row, column in ((y, x), (y, x + 1), (y + 1, x), (y, x - 1), (y - 1, x)):
            sides = [column + 0.5 - left, row + 0.5 - top, right - column - 0.5, bottom - row - 0.5]
            maps[image, 3:, row, column] = torch.stack(sides).clamp(min=1e-3).log()
    return maps


def detect(maps, batch=BATCH, training=False):
    objective, model = Detect("image", "boxes", "label"), Fixed(maps).train(training)
    outcome = objective(model, batch)
    return outcome, objective, model


def metrics(maps, batch=BATCH):
    outcome, objective, _ = detect(maps, batch)
    return objective.metrics({name: value.double() for name, value in outcome.totals.items()})


def test_boxes_are_read_from_the_peaks_best_first():
    maps = perfect()
    maps[0, 0].clamp_(max=3.0)
    guess, scores = suggested(maps)
    assert (scores[:, :2] > 0.9).tolist() == [[True, True], [True, False]]
    torch.testing.assert_close(guess.corners[0, :2], BOXES[0])
    assert guess.classes[0, :2].tolist() == [1, 0]


def test_perfect_maps_have_a_precision_of_1_and_others_have_less():
    assert metrics(perfect()) == {"map": 1.0, "map50": 1.0}
    wider = perfect()
    wider[:, 3:] += 0.2
    assert metrics(wider)["map"] < metrics(wider)["map50"] == 1.0
    assert metrics(torch.zeros(2, 7, 12, 12))["map50"] < 0.1


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_images_without_boxes_have_a_loss_and_gradients(rows):
    nothing = {"boxes": torch.zeros(2, rows, 4), "label": torch.zeros(2, rows, dtype=torch.int64)}
    outcome, _, model = detect(torch.zeros(2, 7, 12, 12), {**BATCH, **nothing})
    outcome.loss.backward()
    assert outcome.loss.item() > 0
    assert model.maps.grad[:, :3].abs().sum() > 0
    assert not model.maps.grad[:, 3:].any()


def test_rows_of_padding_change_nothing():
    more = {"boxes": nn.functional.pad(BOXES, (0, 0, 0, 3))}
    more["label"] = nn.functional.pad(BATCH["label"], (0, 3))
    maps = torch.randn(2, 7, 12, 12, generator=torch.Generator().manual_seed(0))
    some, padded = detect(maps)[0], detect(maps, {**BATCH, **more})[0]
    assert some.loss == padded.loss
    assert all(torch.equal(value, padded.totals[name]) for name, value in some.totals.items())


def test_the_loss_of_a_batch_is_the_mean_of_its_images():
    maps = torch.randn(2, 7, 12, 12, generator=torch.Generator().manual_seed(1))
    alone = [
        detect(maps[i : i + 1], {name: values[i : i + 1] for name, values in BATCH.items()})[0]
        for i in range(2)
    ]
    assert detect(maps)[0].loss.item() == pytest.approx(
        sum(outcome.loss.item() for outcome in alone) / 2, rel=1e-6
    )


def test_gradients_lead_to_the_boxes():
    torch.manual_seed(0)
    objective, model = Detect("image", "boxes", "label"), Fixed(torch.randn(2, 7, 12, 12) - 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.2)
    for _ in range(150):
        optimizer.zero_grad()
        objective(model, BATCH).loss.backward()
        optimizer.step()
    assert metrics(model.maps.detach())["map"] > 0.9
