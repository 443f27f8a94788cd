import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.augment import crop_flip, normalize
from framework.augment.crop_flip import CropFlip
from framework.augment.normalize import Normalize
from framework.augment.pixels import by_operators
from framework.order.draws import draws
from framework.system.native import find

IMAGE = torch.randint(
    0, 256, (12, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
MEAN, STD = [0.4, 0.5, 0.6], [0.2, 0.25, 0.3]
BELOW_ONE = 1 - 2**-24


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "compiled" and find("paceline_crop_flip") is None:
        pytest.skip(
            "framework/system/native is not compiled here: "
            "no C compiler when the package was installed"
        )
    if request.param == "torch":
        monkeypatch.setattr(normalize, "find", lambda name: None)


def _slow(image, padding, flip, numbers):
    """Pad, cut and mirror one record at a time."""
    changed = []
    for record, (down, right, mirror) in zip(image, numbers.tolist(), strict=True):
        channels, height, width = record.shape
        padded = torch.zeros(channels, height + 2 * padding, width + 2 * padding, dtype=torch.uint8)
        padded[:, padding : padding + height, padding : padding + width] = record
        top, left = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
        window = padded[:, top : top + height, left : left + width]
        changed.append(window.flip(2) if mirror < flip else window)
    return torch.stack(changed)


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_gray_images_whose_channels_came_last_are_cut(padding_mode):
    image = IMAGE[:, :1, :, :4].clone(memory_format=torch.contiguous_format)
    other = image.view(12, 5, 4, 1).permute(0, 3, 1, 2)
    numbers = draws(torch.arange(12), 1, 2, 3)
    augment = CropFlip("image", 2, 0.5, None, None, padding_mode)
    assert other.stride() == (20, 1, 4, 1)
    result = augment({"image": other}, numbers)["image"]
    assert torch.equal(result, augment({"image": image}, numbers)["image"])


def _applied(augment, numbers):
    return augment({"image": IMAGE}, numbers)["image"]


@pytest.mark.parametrize("padding", [0, 1, 4, 9])
@pytest.mark.parametrize("flip", [0.0, 0.5, 1.0])
def test_it_equals_the_slow_reference(padding, flip):
    numbers = draws(torch.arange(12), 1, 2, 3)
    expected = Normalize("image", MEAN, STD)({"image": _slow(IMAGE, padding, flip, numbers)}, None)[
        "image"
    ]
    assert torch.equal(_applied(CropFlip("image", padding, flip, MEAN, STD), numbers), expected)


@given(
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 17),
    st.integers(0, 10),
    st.integers(0, 50),
    st.integers(0, 3),
)
def test_any_shape_equals_the_slow_reference(channels, height, width, padding, epoch, start):
    """Compare with the slow reference.

    The image begins ``start`` bytes into its memory, which decides whether four pixels can be moved
    at once.
    """
    size = 4 * channels * height * width
    memory = torch.arange(size + start, dtype=torch.int64).remainder(251).to(torch.uint8)
    image, numbers = (
        memory[start:].view(4, channels, height, width),
        draws(torch.arange(4), 0, epoch, 3),
    )
    result = CropFlip("image", padding, 0.5, None, None)({"image": image}, numbers)["image"]
    assert torch.equal(result, _slow(image, padding, 0.5, numbers))


@pytest.mark.parametrize(
    "change",
    [
        torch.Tensor.float,
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x[:, :, :, ::2],
    ],
)
def test_any_kind_of_pixels_in_any_memory_is_shifted(change):
    numbers = draws(torch.arange(12), 1, 2, 3)
    result = CropFlip("image", 2, 0.5, None, None)({"image": change(IMAGE)}, numbers)["image"]
    assert torch.equal(result, _slow(change(IMAGE), 2, 0.5, numbers).to(result.dtype))
    assert result.is_contiguous()


@pytest.mark.parametrize("padding", [0, 1, 2, 4])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_reflected_margins_equal_those_of_torch(padding, dtype):
    numbers = draws(torch.arange(12), 1, 2, 3)
    augment = CropFlip("image", padding, 0.5, None, None, "reflect")
    result = augment({"image": IMAGE.to(dtype)}, numbers)["image"]
    padded = torch.nn.functional.pad(IMAGE.float(), (padding,) * 4, mode="reflect")
    for record, (down, right, mirror) in enumerate(numbers.tolist()):
        top, left = int(down * (2 * padding + 1)), int(right * (2 * padding + 1))
        expected = padded[record, :, top : top + 5, left : left + 7]
        if mirror < 0.5:
            expected = expected.flip(2)
        assert torch.equal(result[record], expected.to(dtype))


def test_reflected_margins_are_normalized_too():
    numbers = draws(torch.arange(12), 1, 2, 3)
    plain = _applied(CropFlip("image", 2, 0.5, None, None, "reflect"), numbers)
    expected = Normalize("image", MEAN, STD)({"image": plain}, None)["image"]
    assert torch.equal(_applied(CropFlip("image", 2, 0.5, MEAN, STD, "reflect"), numbers), expected)


def test_an_image_as_small_as_its_margins_cannot_be_reflected():
    numbers = draws(torch.arange(12), 1, 2, 3)
    with pytest.raises(ValueError, match="padding = 5 cannot reflect images of 5x7"):
        _applied(CropFlip("image", 5, 0.5, None, None, "reflect"), numbers)
    with pytest.raises(ValueError, match="padding_mode = black must be zeros or reflect"):
        CropFlip("image", 2, 0.5, None, None, "black")


def test_mirroring_alternates_and_shifts_do_not():
    assert CropFlip("image", 2, 0.5, None, None).alternating == ()
    assert CropFlip("image", 2, 0.5, None, None, alternate=True).alternating == (2,)


def test_without_a_mean_pixels_keep_their_kind():
    assert CropFlip("image", 2, 0.5, None, None)({"image": IMAGE}, None)["image"] is IMAGE


def test_several_fields_are_changed_alike():
    numbers = draws(torch.arange(12), 1, 2, 3)
    result = CropFlip(["blurry", "sharp"], 2, 0.5, MEAN, STD)(
        {"blurry": IMAGE, "sharp": IMAGE.clone()}, numbers
    )
    assert torch.equal(result["blurry"], result["sharp"])


@pytest.mark.parametrize(
    "wrong",
    [(-1, 0.5, MEAN, STD), (1, 1.5, MEAN, STD), (1, 0.5, MEAN, None), (1, 0.5, MEAN, [1.0])],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=r"padding|probability|do not fit"):
        CropFlip("image", *wrong)


@pytest.mark.parametrize("number", [0.0, 0.5, BELOW_ONE])
def test_the_most_extreme_draws_stay_inside_the_padded_image(number):
    numbers = torch.full((12, 3), number)
    expected = Normalize("image", MEAN, STD)({"image": _slow(IMAGE, 4, 0.5, numbers)}, None)[
        "image"
    ]
    assert torch.equal(_applied(CropFlip("image", 4, 0.5, MEAN, STD), numbers), expected)


def test_outside_training_it_only_normalizes():
    expected = Normalize("image", MEAN, STD)({"image": IMAGE}, None)["image"]
    assert torch.equal(_applied(CropFlip("image", 4, 0.5, MEAN, STD), None), expected)


def test_every_shift_and_both_mirrors_occur():
    image = torch.zeros(2000, 1, 3, 3, dtype=torch.uint8)
    image[:, 0, 1, 1] = 1
    image[:, 0, 1, 2] = 2
    result = CropFlip("image", 1, 0.5, [0.0], [1.0])(
        {"image": image}, draws(torch.arange(2000), 0, 0, 3)
    )["image"]
    assert len(result.view(2000, 9).unique(dim=0)) == 9 * 2


def test_the_result_lies_in_one_piece():
    numbers = draws(torch.arange(12), 1, 2, 3)
    assert _applied(CropFlip("image", 2, 0.5, MEAN, STD), numbers).is_contiguous()


def check_both_ways(threads):
    torch.set_num_threads(threads)
    for shape in [(300, 3, 32, 32), (5, 1, 28, 28), (2, 4, 9, 8193), (7, 3, 224, 224)]:
        image = torch.randint(
            0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
        )
        augment, numbers = (
            CropFlip("image", 4, 0.5, [0.31], [0.23]),
            draws(torch.arange(shape[0]), 1, 2, 3),
        )
        result = augment({"image": image}, numbers)["image"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(normalize, "find", lambda name: None)
            assert torch.equal(result, augment({"image": image}, numbers)["image"])


def test_draws_of_another_number_of_records_are_refused():
    with pytest.raises((RuntimeError, IndexError)):
        CropFlip("image", 2, 0.5, MEAN, STD)({"image": IMAGE}, draws(torch.arange(5), 0, 0, 3))


@pytest.mark.parametrize("way", ["compiled"], indirect=True)
def test_both_ways_round_alike():
    check_both_ways(1)


@pytest.mark.parametrize("way", ["compiled"], indirect=True)
def test_threads_that_share_a_batch_round_alike():
    # A process that has used OpenMP's threads can no longer be forked, but other tests fork this
    # one. So the check runs in a process of its own.
    words = "from tests.augment.test_crop_flip import check_both_ways; check_both_ways(2)"
    subprocess.run(
        [sys.executable, "-c", words], cwd=Path(__file__).parents[2], check=True, timeout=100
    )


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
def test_images_of_a_gpu_go_through_the_kernel_in_the_models_layout(mode, monkeypatch):
    seen = []

    def kernel(image, change, form):
        seen.append((change, form))
        return by_operators(image, change).to(form.dtype).contiguous(memory_format=form.layout)

    monkeypatch.setattr(normalize, "find", lambda name: None)
    monkeypatch.setattr(crop_flip, "changed_at_once", kernel)
    image = torch.arange(2 * 3 * 8 * 8, dtype=torch.uint8).view(2, 3, 8, 8)
    batch, draws = {"image": image}, torch.tensor([[0.0, 0.9, 0.1], [0.5, 0.2, 0.9]])
    own = CropFlip("image", 2, 0.5, [0.5], [0.5], mode, dtype="bfloat16")
    result = own.with_layout(torch.channels_last)(batch, draws)["image"]
    [(change, form)] = seen
    assert form == (torch.bfloat16, torch.channels_last)
    assert change.reflects == (mode == "reflect")
    monkeypatch.undo()
    assert result.is_contiguous(memory_format=torch.channels_last)
    assert result.equal(own(batch, draws)["image"])


@pytest.mark.parametrize("padding_mode", ["zeros", "reflect"])
def test_16_bit_pixels_are_shifted_and_mirrored_as_bytes_are(padding_mode):
    image = torch.randint(0, 256, (8, 3, 6, 8), dtype=torch.uint8)
    deep = (image.int() * 257).to(torch.uint16)
    numbers = torch.rand(8, 3)
    moved = CropFlip("image", 2, 0.5, None, None, padding_mode)
    result = moved({"image": deep}, numbers)["image"]
    assert torch.equal(result.int(), moved({"image": image}, numbers)["image"].int() * 257)
    normal = CropFlip("image", 2, 0.5, [0.5], [0.25], padding_mode)
    normalized = normal({"image": deep}, numbers)["image"]
    assert torch.allclose(normalized, normal({"image": image}, numbers)["image"], atol=1e-6)
