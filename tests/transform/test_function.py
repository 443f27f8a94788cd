"""Functions of a record's images: a user's own, and the shift of ``transform=opencv``."""

import pickle

import numpy as np
import pytest
from hydra import compose

from framework.cli.hydra_session import hydra_session, resolved
from framework.config.build import build
from framework.errors import ConfigError
from framework.transform import none, opencv, sound_window
from framework.transform.function import FunctionTransform
from tests.contract.cases import pixels

PAIR = {"blurry": pixels(0), "sharp": pixels(1)}


def shift(images, rng, most=200):
    """Add one random number to all fields."""
    number = rng.integers(0, most, dtype=np.uint8)
    return {name: image + number for name, image in images.items()}


def of_each(change):
    """Return a user's function that changes each image by ``change``."""
    return lambda images, rng: {name: change(image) for name, image in images.items()}


def transform(function=shift, evaluation=False, geometry=None):
    return FunctionTransform(function, geometry or none.NoTransform(), evaluation)


def test_the_seed_decides_and_a_pair_is_changed_alike():
    change = transform().function
    changed, again, other = change(PAIR, 7), change(PAIR, 7), change(PAIR, 8)
    assert all(np.array_equal(changed[name], again[name]) for name in PAIR)
    assert not np.array_equal(changed["sharp"], other["sharp"])
    assert len({int(step) for name in PAIR for step in np.unique(changed[name] - PAIR[name])}) == 1


@pytest.mark.parametrize(
    ("function", "words"),
    [
        pytest.param(lambda *_: None, "returned NoneType", id="nothing"),
        pytest.param(
            lambda images, _: {"sharp": images["sharp"]},
            "returned sharp, not blurry, sharp",
            id="a field too few",
        ),
        pytest.param(of_each(lambda image: image / 255), "made blurry float64", id="floats"),
        pytest.param(of_each(lambda image: image[:, :, 0]), "made blurry uint8", id="no channels"),
        pytest.param(of_each(lambda image: image[:0]), r"uint8 \[0, 12, 3\]", id="no pixels"),
        pytest.param(of_each(lambda image: "x"), "made blurry str", id="a text"),
    ],
)
def test_what_it_may_not_return_is_refused_with_its_name(function, words):
    with pytest.raises(ValueError, match=rf"lambda.*{words}"):
        transform(function).function(PAIR, 1)


def test_a_configuration_chooses_function_and_geometry_and_its_package_must_be_allowed():
    words = [
        "transform=function",
        "transform@transform.geometry=center_crop",
        f"transform.function._target_={__name__}.shift",
        "+transform.function.most=2",
    ]
    with hydra_session("train"):
        block = resolved(compose("train", words))["transform"]
    made = build("transform", block, ("tests.",))
    assert made.size == (224, 224)
    expected = shift(PAIR, np.random.default_rng(4), 2)
    assert np.array_equal(made.function(PAIR, 4)["sharp"], expected["sharp"])
    with pytest.raises(ConfigError, match=r"C105.*transform\.function\._target_"):
        build("transform", block, ())


def test_the_function_of_its_geometry_runs_first():
    half = transform(of_each(lambda image: image // 2))
    chained = transform(of_each(lambda image: image + 1), geometry=half).function
    assert np.array_equal(chained(PAIR, 7)["sharp"], PAIR["sharp"] // 2 + 1)
    assert np.array_equal(chained(PAIR, None)["sharp"], PAIR["sharp"])


def test_all_functions_have_random_numbers_of_their_own():
    numbers = []

    def noted(images, rng):
        numbers.append(rng.random())
        return images

    inner = transform(noted, geometry=transform(noted))
    transform(noted, geometry=inner).function(PAIR, 2**63 - 1)
    assert len(set(numbers)) == 3


def test_a_geometry_s_function_knows_label_maps_also_in_another_process():
    function = transform(geometry=opencv.OpenCVTransform(2, 0.5)).function
    known = pickle.loads(pickle.dumps(function.with_labels(["mask"])))
    images = {"mask": np.zeros((8, 8, 1), np.uint8)}
    moved = opencv.OpenCVTransform(2, 0.5).function.with_labels(["mask"])(images, 4)
    assert np.array_equal(known(images, 3)["mask"], shift(moved, np.random.default_rng(3))["mask"])
    assert 255 in moved["mask"]


def test_a_geometry_that_cuts_sounds_is_refused():
    with pytest.raises(ValueError, match=r"geometry cuts sounds.*transform=sound_window"):
        transform(geometry=sound_window.SoundWindow(8))


@pytest.mark.parametrize("channels", [1, 3])
def test_opencv_makes_all_possible_shifts_and_no_others(channels):
    image = pixels(0)[:, :, :channels]
    wide = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    windows = [wide[top : top + 16, left : left + 12] for top in range(5) for left in range(5)]
    possible = {part.tobytes() for window in windows for part in (window, window[:, ::-1])}
    shifted = [opencv.ShiftFlip(2, 0.5)({"image": image}, seed)["image"] for seed in range(300)]
    assert {result.tobytes() for result in shifted} == possible
    assert all(result.shape == image.shape and result.flags.c_contiguous for result in shifted)
