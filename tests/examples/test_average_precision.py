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
