import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.errors import DataError
from framework.order.draws import draws
from framework.transform.random_crop import RandomCrop

BELOW_ONE = 1 - 2**-24
NUMBERS = st.lists(
    st.floats(0, BELOW_ONE, width=32) | st.sampled_from([0.0, BELOW_ONE]), min_size=4, max_size=4
)


def crop(height=8, width=6):
    return RandomCrop([height, width], 0.5, 0.25)


@given(st.integers(8, 3000), st.integers(6, 3000), NUMBERS)
def test_every_window_equals_the_slow_reference(height, width, numbers):
    window = (
        crop()
        .windows(torch.tensor([[height, width]]), torch.tensor([numbers], dtype=torch.float32))[0]
        .tolist()
    )
    corner = [int(numbers[0] * (height - 8 + 1)), int(numbers[1] * (width - 6 + 1))]
    assert window == [*corner, 8, 6, int(numbers[2] < 0.5) + 2 * int(numbers[3] < 0.25)]


@given(st.integers(8, 500), st.integers(6, 500), st.integers(0, 1000), st.integers(0, 20))
def test_images_of_one_size_get_one_window(height, width, index, epoch):
    numbers = draws(torch.tensor([index]), 3, epoch, 4)
    blurry, sharp = (crop().windows(torch.tensor([[height, width]]), numbers) for _ in range(2))
    assert torch.equal(blurry, sharp)


def test_every_place_and_every_flip_occurs():
    windows = crop().windows(torch.tensor([[10, 8]] * 2000), draws(torch.arange(2000), 0, 0, 4))
    assert len(windows.unique(dim=0)) == 3 * 3 * 4


def test_outside_training_it_is_the_middle():
    assert crop().windows(torch.tensor([[10, 8], [8, 6]]), None).tolist() == [
        [1, 1, 8, 6, 0],
        [0, 0, 8, 6, 0],
    ]


@pytest.mark.parametrize("small", [[7, 6], [8, 5]])
@pytest.mark.parametrize("training", [True, False])
def test_an_image_that_is_smaller_is_an_error_that_says_both_sizes(small, training):
    with pytest.raises(DataError, match=rf"D130.*\[8, 6\].*{small[0]} x {small[1]} pixels"):
        crop().windows(torch.tensor([[9, 9], small]), torch.rand(2, 4) if training else None)


def test_nothing_is_scaled():
    assert crop().windows(torch.tensor([[10, 8]]), None)[0, 2:4].tolist() == list(crop().size)
