import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.transform.center_crop import CenterCrop


def window(height, width, size=(224, 224), resize=256):
    return (
        CenterCrop(size, resize, antialias=True)
        .windows(torch.tensor([[height, width]]), None)[0]
        .tolist()
    )


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ((256, 256), [16, 16, 224, 224, 0]),
        ((512, 1024), [32, 288, 448, 448, 0]),
        ((300, 256), [38, 16, 224, 224, 0]),
        ((1, 1), [0, 0, 1, 1, 0]),
    ],
)
def test_the_window_is_the_middle_of_the_image_scaled_to_its_shorter_side(image, expected):
    assert window(*image) == expected


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(1, 300),
    st.integers(1, 300),
    st.integers(0, 50),
)
def test_every_window_is_centered_and_of_the_sizes_shape(
    height, width, target_height, target_width, more
):
    resize = max(target_height, target_width) + more
    top, left, cut_height, cut_width, flip = window(
        height, width, (target_height, target_width), resize
    )
    assert abs(cut_height - max(1, target_height * min(height, width) / resize)) <= 0.5
    assert abs(cut_width - max(1, target_width * min(height, width) / resize)) <= 0.5
    assert 0 <= height - cut_height - 2 * top <= 1
    assert 0 <= width - cut_width - 2 * left <= 1
    assert flip == 0


def test_a_cut_larger_than_the_scaled_image_is_refused():
    with pytest.raises(ValueError, match="resize = 200"):
        CenterCrop([224, 100], 200, antialias=True)
