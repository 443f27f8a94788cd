from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.augment.flip import Flip
from framework.order.draws import DeviceDraws, draws


def slow(image, numbers, flip=0.5, flip_vertical=0.3):
    """Flip one record at a time."""
    changed = []
    for record, (mirror, turn) in zip(image, numbers.tolist(), strict=True):
        sides = [side for side, chosen in ((2, mirror < flip), (1, turn < flip_vertical)) if chosen]
        changed.append(record.flip(sides))
    return torch.stack(changed)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 9)),
    st.integers(0, 30),
    st.integers(0, 3),
    st.sampled_from([torch.uint8, torch.float32]),
)
def test_any_image_is_that_of_the_slow_reference(shape, epoch, start, dtype):
    # The image begins ``start`` values into its memory: that decides whether words are moved.
    size = 6 * shape[0] * shape[1] * shape[2]
    image = torch.arange(size + start).remainder(253).to(dtype)[start:].view(6, *shape)
    numbers = draws(torch.arange(6), 0, epoch, 2)
    result = Flip("image", 0.5, 0.3)({"image": image}, numbers)["image"]
    assert torch.equal(result, slow(image, numbers))
    assert result.dtype == dtype


def test_a_number_that_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="flip_vertical = 2"):
        Flip("image", 0.5, 2)


# ---- mirror images that alternate from epoch to epoch


def mirrored(epoch, flip, alternate=True):
    """Return which of 2,000 records are mirrored in an epoch."""
    augment = Flip("image", flip, 0.0, alternate)
    numbers = DeviceDraws(3, augment.num_draws, augment.alternating)
    batch = {"image": torch.tensor([[[[1, 2]]]]).repeat(2000, 1, 1, 1)}
    image = augment(batch, numbers.of(torch.arange(2000), *numbers.keys(epoch)))["image"]
    return image[:, 0, 0, 0] == 2


def test_two_successive_epochs_show_both_sides_of_each_image():
    epochs = [mirrored(epoch, 0.5) for epoch in range(5)]
    for epoch, following in pairwise(epochs):
        assert torch.equal(epoch, ~following)
    assert 0.45 < epochs[0].float().mean() < 0.55
