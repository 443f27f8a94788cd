import colorsys
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.augment import color_jitter
from framework.augment.color_jitter import ColorJitter
from framework.errors import ConfigError
from framework.order.draws import draws
from framework.system.native import find

IMAGE = torch.randint(
    0, 256, (8, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
IMAGE[0] = 77  # gray: no hue
IMAGE[1, :, 0, 0] = torch.tensor([255, 0, 0])
NUMBERS = draws(torch.arange(8), 0, 0, 4)


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def way(request, monkeypatch):
    if request.param == "compiled" and find("paceline_color_jitter") is None:
        pytest.skip(
            "framework/system/native is not compiled here: "
            "no C compiler when the package was installed"
        )
    if request.param == "torch":
        monkeypatch.setattr(color_jitter, "find", lambda name: None)


def jitter(brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0):
    return ColorJitter("image", brightness, contrast, saturation, hue)


def applied(augment, image=IMAGE):
    return augment({"image": image}, NUMBERS[: len(image)])["image"]


def _gray(image):
    return (0.2989 * image[:, 0] + 0.587 * image[:, 1] + 0.114 * image[:, 2]).unsqueeze(1)


def _factors(column, width):
    return (1 - width + 2 * width * NUMBERS[:, column]).double().view(-1, 1, 1, 1)


def test_brightness_is_a_blend_with_black():
    expected = (IMAGE.double() / 255 * _factors(0, 0.4)).clamp(0, 1)
    assert torch.allclose(applied(jitter(brightness=0.4)).double(), expected, atol=1e-6)


def test_contrast_is_a_blend_with_the_mean_gray_of_the_image():
    image, factor = IMAGE.double() / 255, _factors(1, 0.6)
    expected = (image * factor + (1 - factor) * _gray(image).mean((2, 3), keepdim=True)).clamp(0, 1)
    assert torch.allclose(applied(jitter(contrast=0.6)).double(), expected, atol=1e-5)


def test_saturation_is_a_blend_with_gray():
    image, factor = IMAGE.double() / 255, _factors(2, 0.9)
    expected = (image * factor + (1 - factor) * _gray(image)).clamp(0, 1)
    assert torch.allclose(applied(jitter(saturation=0.9)).double(), expected, atol=1e-6)


def test_hue_is_a_turn_of_the_color_circle():
    result = applied(jitter(hue=0.5))
    for record, row, column in torch.cartesian_prod(
        torch.arange(8), torch.arange(5), torch.arange(4)
    ).tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(
            *(IMAGE[record, :, row, column].double() / 255).tolist()
        )
        turn = float(NUMBERS[record, 3]) - 0.5
        expected = torch.tensor(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
        assert torch.allclose(result[record, :, row, column], expected, atol=1e-5)


def test_all_four_come_in_turn():
    image = applied(jitter(brightness=0.4))
    for part in ({"contrast": 0.4}, {"saturation": 0.4}, {"hue": 0.1}):
        image = applied(jitter(**part), image)
    assert torch.equal(applied(jitter(0.4, 0.4, 0.4, 0.1)), image)


def test_bytes_and_floats_give_the_same():
    assert torch.equal(
        applied(jitter(0.4, 0.4, 0.4, 0.1)),
        applied(jitter(0.4, 0.4, 0.4, 0.1), IMAGE * torch.tensor(1 / 255)),
    )


def test_gray_images_have_brightness_and_contrast_and_no_colors():
    assert applied(jitter(brightness=0.4, contrast=0.4), IMAGE[:, :1]).shape == (8, 1, 5, 4)
    with pytest.raises(ConfigError, match="C132"):
        applied(jitter(hue=0.1), IMAGE[:, :1])


def test_outside_training_bytes_become_the_same_kind_of_floats():
    assert torch.allclose(jitter(0.4)({"image": IMAGE}, None)["image"], IMAGE / 255)


@pytest.mark.parametrize(
    "wrong",
    [{"brightness": -0.1}, {"contrast": float("inf")}, {"saturation": float("nan")}, {"hue": 0.6}],
)
def test_what_cannot_be_is_refused(wrong):
    with pytest.raises(ValueError, match=rf"^{next(iter(wrong))} = "):
        jitter(**wrong)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("step", ["brightness", "contrast", "saturation", "hue"])
def test_other_floats_become_float32(dtype, step):
    image = torch.rand(8, 3, 5, 4, generator=torch.Generator().manual_seed(1)).to(dtype)
    result = applied(jitter(**{step: 0.3}), image)
    assert result.dtype == torch.float32
    assert torch.equal(result, applied(jitter(**{step: 0.3}), image.to(torch.float32)))


def test_draws_of_another_number_of_records_are_refused():
    with pytest.raises(RuntimeError):
        jitter(0.4, 0.4, 0.4, 0.1)({"image": IMAGE}, NUMBERS[:3])


def test_no_record_and_no_pixel_stay_none():
    assert applied(jitter(0.4, 0.4, 0.4, 0.1), IMAGE[:0]).shape == (0, 3, 5, 4)
    assert applied(jitter(contrast=0.4), IMAGE[:, :, :, :0]).shape == (8, 3, 5, 0)


@given(
    st.integers(0, 2**20),
    st.tuples(st.integers(1, 3), st.integers(1, 19), st.integers(1, 40)),
    st.tuples(*[st.sampled_from([0.0, 0.3, 1.0, 1.7])] * 3, st.sampled_from([0.0, 0.1, 0.5])),
    st.sampled_from(["bytes", "few colors", "floats", "other floats"]),
)
@settings(max_examples=60)
def test_both_ways_round_alike(seed, shape, widths, kind):
    if find("paceline_color_jitter") is None:
        pytest.skip("framework/system/native is not compiled here")
    check_both_ways(seed, shape, widths, kind)


def check_both_ways(seed, shape, widths, kind):
    generator, (count, height, width) = torch.Generator().manual_seed(seed), shape
    image = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    if kind == "few colors":  # channels that are equal, and pixels without any color
        image = image // 128 * 255
    if kind == "floats":
        image = torch.rand(image.shape, generator=generator)
    if kind == "other floats":
        image = torch.randn(image.shape, generator=generator) * 300
    augment, numbers = jitter(*widths), draws(torch.arange(count), seed, 0, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(color_jitter, "find", find)
        result = augment({"image": image}, numbers)["image"]
        patch.setattr(color_jitter, "find", lambda name: None)
        assert torch.equal(result, augment({"image": image}, numbers)["image"])
    if any(widths) and "floats" not in kind:
        assert result.min() >= 0
        assert result.max() <= 1


@pytest.mark.parametrize("way", ["compiled"], indirect=True)
def test_threads_that_share_a_batch_round_alike():
    # A process that has used OpenMP's threads can no longer be forked, but other tests fork this
    # one. So the check runs in a process of its own.
    words = (
        "from tests.augment.test_color_jitter import check_both_ways; "
        "check_both_ways(0, (40, 60, 70), (0.4, 0.4, 0.4, 0.1), 'bytes')"
    )
    subprocess.run(
        [sys.executable, "-c", words], cwd=Path(__file__).parents[2], check=True, timeout=100
    )
