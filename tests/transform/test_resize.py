import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.transform.resize import Resize, centered

SIDES = st.integers(1, 3000)


def resize(size, crop=True, antialias=True):
    return Resize(size, crop, antialias)


@pytest.mark.parametrize(
    ("image", "size", "window"),
    [
        ((10, 20), (5, 5), [0, 5, 10, 10, 0]),
        ((20, 10), (5, 5), [5, 0, 10, 10, 0]),
        ((10, 10), (5, 5), [0, 0, 10, 10, 0]),
        ((100, 100), (50, 25), [0, 25, 100, 50, 0]),
        ((11, 10), (4, 4), [0, 0, 10, 10, 0]),
        ((1, 100), (10, 10), [0, 49, 1, 1, 0]),
    ],
)
def test_the_window_is_the_largest_centered_one_of_the_targets_shape(image, size, window):
    assert resize(size).windows(torch.tensor([image]), None).tolist() == [window]


@given(SIDES, SIDES, st.integers(1, 300), st.integers(1, 300))
def test_a_window_touches_two_sides_and_has_the_targets_shape(
    height, width, target_height, target_width
):
    _, _, cut_height, cut_width, _ = centered(
        torch.tensor([[height, width]]), (target_height, target_width)
    )[0].tolist()
    assert cut_height == height or cut_width == width
    assert abs(cut_height * target_width - cut_width * target_height) <= max(
        target_height, target_width
    )


@given(SIDES, SIDES, st.integers(1, 300), st.integers(1, 300))
def test_a_window_is_centered_to_a_pixel(height, width, target_height, target_width):
    top, left, cut_height, cut_width, _ = centered(
        torch.tensor([[height, width]]), (target_height, target_width)
    )[0].tolist()
    assert 0 <= height - cut_height - 2 * top <= 1
    assert 0 <= width - cut_width - 2 * left <= 1


def test_training_changes_nothing():
    sizes = torch.tensor([[30, 40]])
    assert torch.equal(
        resize([8, 8]).windows(sizes, torch.rand(1, 0)), resize([8, 8]).windows(sizes, None)
    )


def test_without_a_crop_the_window_is_the_whole_image():
    assert resize([8, 8], crop=False).windows(torch.tensor([[30, 40]]), None).tolist() == [
        [0, 0, 30, 40, 0]
    ]


@pytest.mark.parametrize("antialias", [True, False])
def test_whether_shrinking_averages_is_as_it_was_said(antialias):
    assert resize([8, 8], antialias=antialias).antialias is antialias


@pytest.mark.parametrize("size", [[8], [8, 0], [8, 8, 3], [-1, 4]])
def test_a_size_that_is_none_is_refused(size):
    with pytest.raises(ValueError, match="height, width"):
        resize(size)
