import math

import pytest
import torch

from framework.augment.random_erasing import RandomErasing
from framework.order.draws import draws

COUNT, HEIGHT, WIDTH = 300, 20, 30
IMAGE = torch.full((COUNT, 3, HEIGHT, WIDTH), 9, dtype=torch.uint8)
NUMBERS = draws(torch.arange(COUNT), 0, 0, 5)


def erasing(probability=1.0, scale=(0.02, 0.33), ratio=(0.3, 3.3), value=(0.0,), field="image"):
    return RandomErasing(field, probability, scale, ratio, value)


def _slow(numbers):
    """Return which pixels of one record are painted (bool [HEIGHT, WIDTH]), in plain numbers."""
    area = (0.02 + numbers[1] * 0.31) * HEIGHT * WIDTH
    ratio = 0.3 * (3.3 / 0.3) ** numbers[2]
    tall = min(HEIGHT, max(1, round(math.sqrt(area * ratio))))
    wide = min(WIDTH, max(1, round(math.sqrt(area / ratio))))
    top, left = int(numbers[3] * (HEIGHT - tall + 1)), int(numbers[4] * (WIDTH - wide + 1))
    painted = torch.zeros(HEIGHT, WIDTH, dtype=torch.bool)
    painted[top : top + tall, left : left + wide] = True
    return painted


def test_every_box_equals_the_slow_reference():
    result = erasing()({"image": IMAGE}, NUMBERS)["image"]
    expected = torch.stack([_slow(numbers) for numbers in NUMBERS.tolist()])
    same = [
        torch.equal(image[0] == 0, painted) for image, painted in zip(result, expected, strict=True)
    ]
    assert sum(same) >= COUNT - 2  # a side that is half a pixel more may be rounded the other way
    assert torch.equal(result[:, 0], result[:, 2])


def test_as_many_as_the_probability_says_have_a_box():
    result = erasing(probability=0.3)({"image": IMAGE}, NUMBERS)["image"]
    assert 60 < int((result == 0).flatten(1).any(1).sum()) < 120


def test_each_channel_has_its_paint():
    result = erasing(value=(1.0, 2.0, 3.0))({"image": IMAGE}, NUMBERS)["image"]
    assert [set(result[:, channel].unique().tolist()) for channel in range(3)] == [
        {1, 9},
        {2, 9},
        {3, 9},
    ]


def test_floats_are_painted_with_fractions_and_bytes_are_not():
    assert 0.5 in erasing(value=(0.5,))({"image": IMAGE.float()}, NUMBERS)["image"]
    with pytest.raises(ValueError, match="value"):
        erasing(value=(0.5,))({"image": IMAGE}, NUMBERS)


def test_several_fields_have_one_box():
    batch = {"blurry": IMAGE, "sharp": IMAGE.clone()}
    result = erasing(field=["blurry", "sharp"])(batch, NUMBERS)
    assert torch.equal(result["blurry"], result["sharp"])
    assert not torch.equal(result["sharp"], IMAGE)


def test_outside_training_nothing_is_painted():
    assert erasing()({"image": IMAGE}, None)["image"] is IMAGE


@pytest.mark.parametrize(
    "wrong", [{"scale": (0.5, 0.1)}, {"ratio": (0.0, 1.0)}, {"probability": 2.0}]
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        erasing(**wrong)


@pytest.mark.parametrize("value", [(1.0, 2.0), (1.0, 2.0, 3.0, 4.0)])
def test_paint_for_another_number_of_channels_is_refused(value):
    with pytest.raises(ValueError, match=r"does not fit 3 channel\(s\): give one number"):
        erasing(value=value)({"image": IMAGE}, NUMBERS)


def test_paint_is_needed():
    with pytest.raises(ValueError, match="value"):
        erasing(value=())


def test_16_bit_pixels_are_painted_up_to_their_white():
    deep = IMAGE.to(torch.uint16)
    result = erasing(value=(65535.0,))({"image": deep}, NUMBERS)["image"]
    assert set(result.int().unique().tolist()) == {9, 65535}
    with pytest.raises(ValueError, match="no pixel from 0 to 65535"):
        erasing(value=(65536.0,))({"image": deep}, NUMBERS)
