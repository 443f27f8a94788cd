import math

import pytest
import torch

from framework.augment.cutmix import CutMix
from framework.order.draws import draws

COUNT, HEIGHT, WIDTH = 40, 9, 12
IMAGE = (
    torch.arange(COUNT, dtype=torch.uint8)
    .view(-1, 1, 1, 1)
    .expand(COUNT, 3, HEIGHT, WIDTH)
    .contiguous()
)
BATCH = {"image": IMAGE, "label": torch.arange(COUNT) % 3}
NUMBERS = draws(torch.arange(COUNT), 0, 0, 4)


def cutmix(field="image", probability=1.0, alpha=1.0):
    return CutMix(field, "label", 3, alpha, probability)


def _box(numbers):
    """Return top, bottom, left and right of a record's box for alpha = 1."""
    half = 0.5 * math.sqrt(1 - numbers[1])
    row, column, tall, wide = (
        int(numbers[2] * HEIGHT),
        int(numbers[3] * WIDTH),
        int(half * HEIGHT),
        int(half * WIDTH),
    )
    return (
        max(0, row - tall),
        min(HEIGHT, row + tall),
        max(0, column - wide),
        min(WIDTH, column + wide),
    )


def test_each_image_gets_a_box_of_its_partner():
    mixed = cutmix()(BATCH, NUMBERS)["image"]
    for i in range(COUNT):
        top, bottom, left, right = _box(NUMBERS[i].tolist())
        expected = torch.full((3, HEIGHT, WIDTH), i)
        expected[:, top:bottom, left:right] = (i - 1) % COUNT
        assert torch.equal(mixed[i].long(), expected)


def test_labels_are_blended_by_the_area_of_the_box():
    mixed = cutmix()(BATCH, NUMBERS)
    for i in range(COUNT):
        own = float((mixed["image"][i] == i).float().mean())
        expected = torch.zeros(3)
        expected[BATCH["label"][i]] += own
        expected[BATCH["label"][i - 1]] += 1 - own
        torch.testing.assert_close(mixed["label"][i], expected)


def test_images_keep_their_dtype():
    assert cutmix()(BATCH, NUMBERS)["image"].dtype == torch.uint8
    assert cutmix()({**BATCH, "image": IMAGE.float()}, NUMBERS)["image"].dtype == torch.float32


def test_a_probability_of_zero_changes_no_image():
    mixed = cutmix(probability=0.0)(BATCH, NUMBERS)
    assert torch.equal(mixed["image"], IMAGE)
    assert torch.equal(mixed["label"].argmax(1), BATCH["label"])


def test_outside_training_nothing_is_changed():
    assert cutmix()(BATCH, None) == BATCH


def test_all_fields_get_the_same_box():
    mixed = cutmix(["blurry", "sharp"])(
        {"blurry": IMAGE, "sharp": IMAGE, "label": BATCH["label"]}, NUMBERS
    )
    assert torch.equal(mixed["blurry"], mixed["sharp"])


@pytest.mark.parametrize("wrong", [{"alpha": 0.0}, {"probability": -0.5}])
def test_an_impossible_number_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        cutmix(**wrong)
