import pytest
import torch

from framework.order.draws import draws
from framework.transform.flip import FlipTransform

SIZES = torch.tensor([[30, 40]] * 2000)


@pytest.mark.parametrize(
    ("flip", "flip_vertical", "expected"),
    [(0.0, 0.0, 0), (1.0, 0.0, 1), (0.0, 1.0, 2), (1.0, 1.0, 3)],
)
def test_one_is_a_mirror_two_is_upside_down_three_is_both(flip, flip_vertical, expected):
    windows = FlipTransform(flip, flip_vertical).windows(SIZES[:5], draws(torch.arange(5), 0, 0, 2))
    assert windows.tolist() == [[0, 0, 30, 40, expected]] * 5


def test_the_two_flips_are_drawn_apart():
    codes = (
        FlipTransform(0.5, 0.5).windows(SIZES, draws(torch.arange(2000), 0, 0, 2))[:, 4].bincount()
    )
    assert all(abs(int(code) - 500) < 80 for code in codes)


def test_outside_training_nothing_is_flipped():
    assert FlipTransform(1.0, 1.0).windows(SIZES[:3], None)[:, 4].tolist() == [0, 0, 0]


@pytest.mark.parametrize("wrong", [(-0.1, 0.0), (0.0, 1.1)])
def test_what_is_no_probability_is_refused(wrong):
    with pytest.raises(ValueError, match="probability"):
        FlipTransform(*wrong)
