import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.augment.flip import Flip
from framework.order import draws


def _image(channels=3, height=4, width=8, dtype=torch.uint8):
    return (
        torch.arange(6 * channels * height * width)
        .remainder(253)
        .view(6, channels, height, width)
        .to(dtype)
    )


def _slow(image, numbers, flip, flip_vertical):
    """One record at a time."""
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
    found = Flip("image", 0.5, 0.3)({"image": image}, numbers)["image"]
    assert torch.equal(found, _slow(image, numbers, 0.5, 0.3))
    assert found.dtype == dtype


def test_several_fields_are_flipped_alike():
    batch = {"blurry": _image(), "sharp": _image().clone(), "mask": _image()}
    found = Flip(["blurry", "sharp"], 0.5, 0.5)(batch, draws(torch.arange(6), 0, 0, 2))
    assert torch.equal(found["blurry"], found["sharp"])
    assert found["mask"] is batch["mask"]


def test_nothing_is_flipped_outside_training():
    batch = {"image": _image()}
    assert Flip("image", 1.0, 1.0)(batch, None)["image"] is batch["image"]


def test_what_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="flip_vertical = 2"):
        Flip("image", 0.5, 2)
