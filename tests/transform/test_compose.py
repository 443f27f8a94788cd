"""A composed transform gives, nearly or exactly, the result of its steps in turn."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.media.scale import before_turn, moved_points, scale, scale_into
from framework.order.draws import draws
from framework.transform import center_crop, function, none, random_resized_crop, sound_window
from framework.transform.compose import ComposeTransform
from framework.transform.flip import FlipTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.resize import Resize
from framework.transform.rotate import Rotate
from framework.transform.shorter_side import ShorterSide

MOVES = {"turn": Rotate([0, 1, 2, 3]), "flip": FlipTransform(0.5, 0.5)}
MOVES |= {"crop": RandomCrop([5, 5], 0.5, 0.5)}
SCALING = {
    "shorter side": {
        "scale": ShorterSide(40, True),
        "crop": RandomCrop([32, 32], 0.5, 0.0),
        "turn": Rotate([0, 1, 3]),
    },
    "turn first": {"turn": Rotate([0, 1, 2, 3]), "size": Resize([32, 24], True, True)},
    "crop last": {"size": Resize([40, 50], False, True), "crop": RandomCrop([32, 24], 0.0, 0.5)},
    "two crops": {
        "crop": random_resized_crop.RandomResizedCrop([40, 40], [0.5, 1.0], [1, 1], 0.5, 0.5, True),
        "middle": center_crop.CenterCrop([30, 30], 36, True),
    },
}


def applied(image, window, size):
    """Return an image [H, W, C] after one window, scaling and flip."""
    top, left, height, width, flip = window.tolist()
    pixels = np.ascontiguousarray(image[top : top + height, left : left + width])
    height, width = size or before_turn(flip, (height, width))
    out = np.empty((image.shape[2], height, width), np.uint8)
    scale_into(pixels, True, flip, out)
    return np.ascontiguousarray(out.transpose(1, 2, 0))


def one_after_another(transform, image, numbers):
    start = 0
    for part in transform.parts.values():
        own = numbers[:, start : start + part.num_draws]
        start += part.num_draws
        sizes = torch.tensor([image.shape[:2]])
        window = part.windows(sizes, own)[0]
        if isinstance(part, ShorterSide):
            image = scale(image, tuple(part.scaled(sizes)[0].tolist()), True)
        else:
            image = applied(image, window, part.size)
    return image


def at_once(transform, image, numbers):
    window = transform.windows(torch.tensor([image.shape[:2]]), numbers)[0]
    return applied(image, window, transform.size)


@given(
    st.permutations(["turn", "flip", "crop"]),
    st.integers(0, 500),
    st.integers(5, 30),
    st.integers(5, 30),
)
def test_moves_without_scaling_equal_their_steps(names, seed, height, width):
    transform = ComposeTransform({name: MOVES[name] for name in names})
    numbers = draws(torch.tensor([seed]), 0, 0, transform.num_draws)
    image = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    expected = one_after_another(transform, image, numbers)
    assert np.array_equal(at_once(transform, image, numbers), expected)


@pytest.mark.parametrize("parts", SCALING.values(), ids=SCALING)
def test_scaling_once_is_close_to_scaling_in_every_step(parts):
    transform = ComposeTransform(parts)
    y, x = np.mgrid[:120, :150]  # smooth: a shift by a pixel changes values little
    image = np.stack([255 * y / 120, 255 * x / 150, 127 + 0 * x], axis=2).astype(np.uint8)
    for seed in range(6):
        numbers = draws(torch.tensor([seed]), 0, 0, transform.num_draws)
        once = at_once(transform, image, numbers)
        often = one_after_another(transform, image, numbers)
        assert once.shape == often.shape == (*transform.size, 3)
        # Neighboring pixels of the picture differ by about 2 levels: 8 levels are about 4 pixels.
        assert np.abs(once.astype(int) - often).max() <= 8


@given(st.integers(0, 500))
def test_points_follow_all_steps(seed):
    transform = ComposeTransform(MOVES)
    numbers = draws(torch.tensor([seed]), 0, 0, transform.num_draws)
    image = np.zeros((9, 12, 1), np.uint8)
    image[4, 6] = 255
    result = at_once(transform, image, numbers)[..., 0]
    window = transform.windows(torch.tensor([[9, 12]]), numbers)
    x, y = moved_points(torch.tensor([[6.5, 4.5]]), window, transform.size)[0].tolist()
    if result.any():
        assert np.argwhere(result).tolist() == [[int(y), int(x)]]
    else:
        assert not (0 <= x < 5 and 0 <= y < 5)


def change(images, rng):
    return images


OWN = function.FunctionTransform(change, none.NoTransform(), False)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        pytest.param({}, "changes nothing", id="nothing"),
        pytest.param({"scale": ShorterSide(8, True)}, "several sizes", id="sizes"),
        pytest.param(
            {"size": Resize([8, 6], True, True), "turn": Rotate([1])},
            "8 x 6.*put it before",
            id="turn last",
        ),
        pytest.param({"f": OWN, "turn": Rotate([1])}, "put it last", id="function first"),
        pytest.param(
            {"window": sound_window.SoundWindow(8), "crop": RandomCrop([4, 4], 0.5, 0.0)},
            r"parts\.window cuts sounds.*transform=sound_window",
            id="sounds",
        ),
    ],
)
def test_parts_that_cannot_be_composed_are_refused(parts, words):
    with pytest.raises(ValueError, match=words):
        ComposeTransform(parts)


def test_a_name_instead_of_a_transform_is_refused():
    with pytest.raises(TypeError, match=r"\+transform@transform\.parts\.x=CHOICE"):
        ComposeTransform({"x": "flip"})
