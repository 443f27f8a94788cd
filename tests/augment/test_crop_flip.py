"""Shifts and mirror images, by compiled code and by torch's operators."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.augment import color_jitter, normalize
from framework.augment.crop_flip import CropFlip
from framework.augment.flip import Flip
from framework.augment.normalize import Normalize, by_operators
from framework.order.draws import DeviceDraws, draws
from tests.forks import forked

IMAGE = torch.randint(
    0, 256, (12, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
NUMBERS = draws(torch.arange(12), 1, 2, 3)
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
MODES = pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])


def slow(image, padding, flip, numbers, mode="constant"):
    """Pad, cut and mirror one record at a time, with torch's own margins."""
    height, width = image.shape[2:]
    padded = torch.nn.functional.pad(image.double(), (padding,) * 4, mode=mode)
    changed = []
    for record, (down, right, mirror) in zip(padded, numbers.tolist(), strict=True):
        top, left = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
        window = record[:, top : top + height, left : left + width]
        changed.append(window.flip(2) if mirror < flip else window)
    return torch.stack(changed).to(image.dtype)


def applied(augment, image=IMAGE, numbers=NUMBERS):
    return augment({"image": image}, numbers)["image"]


def both_ways(augment, image=IMAGE, numbers=NUMBERS):
    """Check that compiled code and torch's operators give the same, and return it."""
    result = applied(augment, image, numbers)
    with pytest.MonkeyPatch.context() as patch:
        for module in (color_jitter, normalize):
            patch.setattr(module, "find", lambda name: None)
        assert torch.equal(result, applied(augment, image, numbers))
    return result


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 17)),
    st.integers(0, 10),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.integers(0, 50),
    st.integers(0, 3),
)
def test_any_image_is_that_of_the_slow_reference_both_ways(shape, padding, flip, epoch, start):
    # The image begins ``start`` bytes into its memory: that decides whether words are moved.
    size = 4 * shape[0] * shape[1] * shape[2]
    memory = torch.arange(size + start, dtype=torch.int64).remainder(251).to(torch.uint8)
    image, numbers = memory[start:].view(4, *shape), draws(torch.arange(4), 0, epoch, 3)
    result = both_ways(CropFlip("image", padding, flip, None, None), image, numbers)
    assert torch.equal(result, slow(image, padding, flip, numbers))


@MODES
def test_what_is_shifted_is_normalized_as_normalize_does(padding_mode):
    plain = both_ways(CropFlip("image", 2, 0.5, None, None, padding_mode))
    expected = Normalize("image", MEAN, STD)({"image": plain}, None)["image"]
    result = both_ways(CropFlip("image", 2, 0.5, MEAN, STD, padding_mode))
    assert torch.equal(result, expected)
    assert result.is_contiguous()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(torch.Tensor.float, id="floats"),
        pytest.param(lambda x: x.to(memory_format=torch.channels_last), id="channels last"),
        pytest.param(lambda x: x[:, :, :, ::2], id="strided"),
        pytest.param(
            lambda x: x[:, :1, :, :4].contiguous().view(12, 5, 4, 1).permute(0, 3, 1, 2),
            id="gray, channels last",
        ),
    ],
)
def test_any_kind_of_pixels_in_any_memory_is_shifted(change):
    result = both_ways(CropFlip("image", 2, 0.5, None, None), change(IMAGE))
    assert torch.equal(result, slow(change(IMAGE), 2, 0.5, NUMBERS))
    assert result.is_contiguous()


@pytest.mark.parametrize("padding", [0, 1, 4])
def test_reflected_margins_are_those_of_torch(padding):
    augment = CropFlip("image", padding, 0.5, None, None, "reflect")
    for image in (IMAGE, IMAGE.float()):
        expected = slow(image, padding, 0.5, NUMBERS, "reflect")
        assert torch.equal(both_ways(augment, image), expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((-1, 0.5, MEAN, STD), "padding = -1"),
        ((1, 1.5, MEAN, STD), "probability"),
        ((1, 0.5, MEAN, None), "do not fit"),
        ((1, 0.5, MEAN, [1.0]), "do not fit"),
        ((2, 0.5, None, None, "black"), "padding_mode = black must be zeros or reflect"),
    ],
    ids=["padding", "flip", "no std", "too few std", "padding_mode"],
)
def test_options_that_mean_nothing_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        CropFlip("image", *options)


def check_large_batches(threads):
    """Check both ways with batches that threads share, and with rows that fill no word."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(1)
    for shape in [(300, 3, 32, 32), (5, 1, 28, 28), (2, 3, 9, 8193), (7, 3, 64, 224)]:
        image = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
        numbers = draws(torch.arange(shape[0]), 1, 2, 4)
        both_ways(CropFlip("image", 4, 0.5, [0.31], [0.23]), image, numbers[:, :3])
        if shape[1] == 3:
            both_ways(color_jitter.ColorJitter("image", 0.4, 0.4, 0.4, 0.1), image, numbers)


def test_threads_that_share_a_batch_round_alike_for_crop_flip_and_color_jitter():
    # A process that has used OpenMP's threads can no longer be forked, but other tests fork this
    # one. So the check runs in a process of its own.
    process = forked(check_large_batches, 2)
    process.join(100)
    assert process.exitcode == 0


@MODES
def test_images_of_a_gpu_go_through_the_kernel_in_the_models_layout(padding_mode, monkeypatch):
    seen = []

    def kernel(image, change, form):
        seen.append((change, form))
        return by_operators(image, change).to(form.dtype).contiguous(memory_format=form.layout)

    own = CropFlip("image", 2, 0.5, [0.5], [0.5], padding_mode, dtype="bfloat16")
    with monkeypatch.context() as patch:
        patch.setattr(normalize, "find", lambda name: None)
        patch.setattr(normalize, "changed_at_once", kernel)
        result = applied(own.with_layout(torch.channels_last))
    [(change, form)] = seen
    assert form == (torch.bfloat16, torch.channels_last)
    assert change.reflects == (padding_mode == "reflect")
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert result.equal(applied(own))


def flipped_slowly(image, numbers, flip=0.5, flip_vertical=0.3):
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
def test_any_flipped_image_is_that_of_the_slow_reference(shape, epoch, start, dtype):
    # The image begins ``start`` values into its memory: that decides whether words are moved.
    size = 6 * shape[0] * shape[1] * shape[2]
    image = torch.arange(size + start).remainder(253).to(dtype)[start:].view(6, *shape)
    numbers = draws(torch.arange(6), 0, epoch, 2)
    result = Flip("image", 0.5, 0.3)({"image": image}, numbers)["image"]
    assert torch.equal(result, flipped_slowly(image, numbers))
    assert result.dtype == dtype


def test_a_number_that_is_no_probability_is_refused():
    with pytest.raises(ValueError, match="flip_vertical = 2"):
        Flip("image", 0.5, 2)


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
