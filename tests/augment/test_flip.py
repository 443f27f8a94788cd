from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.augment.flip import Flip
from framework.order.draws import DeviceDraws, draws


def _image(channels=3, height=4, width=8, dtype=torch.uint8):
    return (
        torch.arange(6 * channels * height * width)
        .remainder(253)
        .view(6, channels, height, width)
        .to(dtype)
    )


def _slow(image, numbers, flip, flip_vertical):
    """Flip one record at a time."""
    changed = []
    for record, (mirror, turn) in zip(image, numbers.tolist(), strict=True):
        sides = [side for side, chosen in ((2, mirror < flip), (1, turn < flip_vertical)) if chosen]
        changed.append(record.flip(sides))
    return torch.stack(changed)


@given(
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 30),
    st.sampled_from([torch.uint8, torch.float32]),
)
def test_any_image_equals_the_slow_reference(channels, height, width, epoch, dtype):
    image, numbers = _image(channels, height, width, dtype), draws(torch.arange(6), 0, epoch, 2)
    result = Flip("image", 0.5, 0.3)({"image": image}, numbers)["image"]
    assert torch.equal(result, _slow(image, numbers, 0.5, 0.3))
    assert result.dtype == dtype


def test_gray_images_whose_channels_came_last_are_flipped():
    image = _image(1).permute(0, 2, 3, 1).clone(memory_format=torch.contiguous_format)
    image = image.permute(0, 3, 1, 2)
    numbers = draws(torch.arange(6), 0, 0, 2)
    assert image.stride() == (32, 1, 8, 1)
    result = Flip("image", 0.5, 0.3)({"image": image}, numbers)["image"]
    assert torch.equal(result, _slow(image, numbers, 0.5, 0.3))


@pytest.mark.parametrize("start", range(4))
def test_an_image_may_begin_anywhere_in_its_memory(start):
    memory = torch.arange(6 * 4 * 8 + start).to(torch.uint8)
    image = memory[start:].view(6, 1, 4, 8)
    numbers = draws(torch.arange(6), 0, 0, 2)
    result = Flip("image", 0.5, 0.3)({"image": image}, numbers)["image"]
    assert torch.equal(result, _slow(image, numbers, 0.5, 0.3))


def test_several_fields_are_flipped_alike():
    batch = {"blurry": _image(), "sharp": _image().clone(), "mask": _image()}
    result = Flip(["blurry", "sharp"], 0.5, 0.5)(batch, draws(torch.arange(6), 0, 0, 2))
    assert torch.equal(result["blurry"], result["sharp"])
    assert result["mask"] is batch["mask"]


def test_nothing_is_flipped_outside_training():
    batch = {"image": _image()}
    assert Flip("image", 1.0, 1.0)(batch, None)["image"] is batch["image"]


def test_what_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="flip_vertical = 2"):
        Flip("image", 0.5, 2)


def _mirrored(epoch, flip, alternate=True, seed=3):
    """Return which of 2,000 records are mirrored in an epoch."""
    augment = Flip("image", flip, 0.0, alternate)
    numbers = DeviceDraws(seed, augment.num_draws, augment.alternating)
    batch = {"image": torch.tensor([[[[1, 2]]]]).repeat(2000, 1, 1, 1)}
    image = augment(batch, numbers.of(torch.arange(2000), *numbers.keys(epoch)))["image"]
    return image[:, 0, 0, 0] == 2


def test_alternating_images_show_both_sides_in_two_successive_epochs():
    epochs = [_mirrored(epoch, 0.5) for epoch in range(5)]
    for epoch, following in pairwise(epochs):
        assert torch.equal(epoch, ~following)
    assert 0.45 < epochs[0].float().mean() < 0.55


def test_the_first_epoch_is_as_without_alternating():
    assert torch.equal(_mirrored(0, 0.5), _mirrored(0, 0.5, alternate=False))
    assert not torch.equal(_mirrored(2, 0.5), _mirrored(2, 0.5, alternate=False))


def test_a_rarer_mirror_image_keeps_its_probability():
    even, odd = _mirrored(0, 0.2), _mirrored(1, 0.2)
    assert 0.17 < even.float().mean() < 0.23
    assert 0.17 < odd.float().mean() < 0.23
    assert not (even & odd).any()


@pytest.mark.parametrize("flip", [0.0, 1.0])
def test_what_is_certain_does_not_alternate(flip):
    assert all(bool((_mirrored(epoch, flip) == bool(flip)).all()) for epoch in range(2))


def test_16_bit_pixels_are_flipped():
    image = torch.arange(6, dtype=torch.int32).mul(13107).to(torch.uint16).view(1, 1, 2, 3)
    result = Flip("image", 1.0, 1.0)({"image": image}, torch.zeros(1, 2))["image"]
    assert result.dtype == torch.uint16
    assert result.flatten().tolist() == image.flatten().tolist()[::-1]
