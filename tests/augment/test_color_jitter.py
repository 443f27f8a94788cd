import colorsys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from framework.augment import color_jitter
from framework.errors import ConfigError
from framework.order.draws import draws

IMAGE = torch.randint(
    0, 256, (8, 3, 5, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)
IMAGE[0] = 77  # gray: no hue
IMAGE[1, :, 0, 0] = torch.tensor([255, 0, 0])
NUMBERS = draws(torch.arange(8), 0, 0, 4)


def jitter(brightness=0.0, contrast=0.0, saturation=0.0, hue=0.0):
    return color_jitter.ColorJitter("image", brightness, contrast, saturation, hue)


def applied(augment, image=IMAGE, numbers=NUMBERS):
    return augment({"image": image}, numbers[: len(image)])["image"]


def gray(image):
    return (0.2989 * image[:, 0] + 0.587 * image[:, 1] + 0.114 * image[:, 2]).unsqueeze(1)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("brightness", torch.zeros_like),
        ("contrast", lambda image: gray(image).mean((2, 3), keepdim=True)),
        ("saturation", gray),
    ],
    ids=["with black", "with the mean gray of the image", "with gray"],
)
def test_an_image_is_blended(name, other):
    column = ["brightness", "contrast", "saturation"].index(name)
    factor = (1 - 0.6 + 1.2 * NUMBERS[:, column]).double().view(-1, 1, 1, 1)
    image = IMAGE.double() / 255
    expected = (image * factor + (1 - factor) * other(image)).clamp(0, 1)
    assert torch.allclose(applied(jitter(**{name: 0.6})).double(), expected, atol=1e-5)


def test_hue_is_a_turn_of_the_color_circle():
    result = applied(jitter(hue=0.5)).permute(0, 2, 3, 1)
    pixels = IMAGE.permute(0, 2, 3, 1).double() / 255
    for record in range(8):
        turn = float(NUMBERS[record, 3]) - 0.5
        pairs = zip(pixels[record].reshape(-1, 3), result[record].reshape(-1, 3), strict=True)
        for pixel, turned in pairs:
            hue, saturation, value = colorsys.rgb_to_hsv(*pixel.tolist())
            expected = torch.tensor(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
            assert torch.allclose(turned, expected, atol=1e-5)


def test_gray_images_have_brightness_and_contrast_and_no_colors():
    assert applied(jitter(brightness=0.4, contrast=0.4), IMAGE[:, :1]).shape == (8, 1, 5, 4)
    with pytest.raises(ConfigError, match="C132"):
        applied(jitter(hue=0.1), IMAGE[:, :1])


def test_outside_training_bytes_become_the_same_kind_of_floats():
    assert torch.allclose(jitter(0.4)({"image": IMAGE}, None)["image"], IMAGE / 255)


@pytest.mark.parametrize(
    "width",
    [{"brightness": -0.1}, {"contrast": float("inf")}, {"saturation": float("nan")}, {"hue": 0.6}],
    ids=["brightness", "contrast", "saturation", "hue"],
)
def test_a_width_out_of_its_range_is_refused(width):
    with pytest.raises(ValueError, match=rf"^{next(iter(width))} = "):
        jitter(**width)


@given(
    st.integers(0, 2**20),
    st.tuples(st.integers(1, 3), st.integers(1, 19), st.integers(1, 40)),
    st.tuples(*[st.sampled_from([0.0, 0.3, 1.0, 1.7])] * 3, st.sampled_from([0.0, 0.1, 0.5])),
    st.sampled_from(["bytes", "few colors", "floats", "other floats"]),
)
@settings(max_examples=60)
def test_compiled_code_and_operators_round_alike(seed, shape, widths, kind):
    generator, (count, height, width) = torch.Generator().manual_seed(seed), shape
    image = torch.randint(0, 256, (count, 3, height, width), dtype=torch.uint8, generator=generator)
    if kind == "few colors":  # channels that are equal, and pixels without any color
        image = image // 128 * 255
    if kind == "floats":
        image = torch.rand(image.shape, generator=generator)
    if kind == "other floats":
        image = torch.randn(image.shape, generator=generator) * 300
    augment, numbers = jitter(*widths), draws(torch.arange(count), seed, 0, 4)
    result = applied(augment, image, numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(color_jitter, "find", lambda name: None)
        assert torch.equal(result, applied(augment, image, numbers))
    if any(widths) and "floats" not in kind:
        assert result.min() >= 0
        assert result.max() <= 1
