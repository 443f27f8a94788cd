import pickle
from functools import partial

import numpy as np
import pytest
import torch
from hydra import compose

from framework.cli.hydra_app import resolved
from framework.cli.hydra_session import hydra_session
from framework.config.build import build
from framework.errors import ConfigError
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.opencv import OpenCVTransform
from framework.transform.random_crop import RandomCrop
from framework.transform.sound_window import SoundWindow
from tests.contract.cases import pixels

PAIR = {"blurry": pixels(0), "sharp": pixels(1)}


def shift(images, rng, most=200):
    """Add one random number to all fields."""
    number = rng.integers(0, most, dtype=np.uint8)
    return {name: image + number for name, image in images.items()}


def transform(function=shift, evaluation=False, geometry=None):
    return FunctionTransform(function, geometry or NoTransform(), evaluation)


def test_the_seed_decides_and_a_pair_is_changed_alike():
    change = transform().function
    changed, again, other = change(PAIR, 7), change(PAIR, 7), change(PAIR, 8)
    assert all(np.array_equal(changed[name], again[name]) for name in PAIR)
    assert not np.array_equal(changed["sharp"], other["sharp"])
    assert len({int(step) for name in PAIR for step in np.unique(changed[name] - PAIR[name])}) == 1


@pytest.mark.parametrize(("evaluation", "changed"), [(False, False), (True, True)])
def test_outside_training_it_is_called_only_where_that_was_asked_for(evaluation, changed):
    result = transform(evaluation=evaluation).function(PAIR, None)
    assert np.array_equal(result["sharp"], PAIR["sharp"]) is not changed


def test_the_geometry_is_the_one_it_was_given():
    crop = RandomCrop([4, 4], 0.5, 0.0)
    wrapped, sizes = transform(geometry=crop), torch.tensor([[16, 12]])
    assert (wrapped.size, wrapped.antialias, wrapped.num_draws) == (
        crop.size,
        crop.antialias,
        crop.num_draws,
    )
    assert torch.equal(
        wrapped.windows(sizes, torch.ones(1, 4) / 2), crop.windows(sizes, torch.ones(1, 4) / 2)
    )


def test_it_can_be_sent_to_another_process():
    change = transform(partial(shift, most=3)).function
    assert np.array_equal(
        pickle.loads(pickle.dumps(change))(PAIR, 5)["sharp"], change(PAIR, 5)["sharp"]
    )


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda images, rng: None, "returned NoneType"),
        (lambda images, rng: {"sharp": images["sharp"]}, "returned sharp, not blurry, sharp"),
        (
            lambda images, rng: {name: image / 255 for name, image in images.items()},
            "made blurry float64",
        ),
        (
            lambda images, rng: {name: image[:, :, 0] for name, image in images.items()},
            "made blurry uint8",
        ),
        (
            lambda images, rng: {name: image[:0] for name, image in images.items()},
            r"uint8 \[0, 12, 3\]",
        ),
        (lambda images, rng: dict.fromkeys(images, "x"), "made blurry str"),
    ],
)
def test_what_it_may_not_return_is_said_with_its_name(made, words):
    with pytest.raises(ValueError, match=rf"lambda.*{words}"):
        transform(made).function(PAIR, 1)


def test_results_lie_in_one_piece():
    result = transform(
        lambda images, rng: {name: image[::-1, ::2] for name, image in images.items()}
    ).function(PAIR, 1)
    assert all(image.flags.c_contiguous for image in result.values())


BLOCK = {
    "_target_": "framework.transform.function.FunctionTransform",
    "function": {"_target_": f"{__name__}.shift", "_partial_": True, "most": 2},
    "geometry": {"_target_": "framework.transform.none.NoTransform"},
    "evaluation": False,
}


def test_a_configuration_names_it_only_where_its_package_is_allowed():
    made = build("transform", BLOCK, ("tests.",))
    assert np.array_equal(
        made.function(PAIR, 4)["sharp"], shift(PAIR, np.random.default_rng(4), 2)["sharp"]
    )
    with pytest.raises(ConfigError, match=r"C105.*transform\.function._target_"):
        build("transform", BLOCK, ())


def test_its_geometry_is_another_choice_of_the_group():
    wanted = [
        "transform=function",
        "transform@transform.geometry=center_crop",
        f"transform.function._target_={__name__}.shift",
    ]
    with hydra_session("train"):
        block = resolved(compose("train", wanted))["transform"]
    made = build("transform", block, ("tests.",))
    assert made.size == (224, 224)
    assert made.function(PAIR, 4).keys() == PAIR.keys()


def test_the_function_of_its_geometry_runs_first():
    geometry = transform(lambda images, rng: {name: image // 2 for name, image in images.items()})
    both = transform(lambda images, rng: {name: image + 1 for name, image in images.items()})
    chained = transform(both.function.function, geometry=geometry).function
    assert np.array_equal(chained(PAIR, 7)["sharp"], PAIR["sharp"] // 2 + 1)
    assert np.array_equal(chained(PAIR, None)["sharp"], PAIR["sharp"])


def test_both_functions_have_random_numbers_of_their_own():
    numbers = []

    def noted(images, rng):
        numbers.append(rng.random())
        return images

    inner = transform(noted, geometry=transform(noted))
    transform(noted, geometry=inner).function(PAIR, 2**63 - 1)
    assert len(set(numbers)) == 3


def test_a_geometry_with_a_function_knows_label_maps_and_can_be_sent_to_another_process():
    function = transform(geometry=OpenCVTransform(2, 0.5)).function
    known = pickle.loads(pickle.dumps(function.with_labels(["mask"])))
    images = {"mask": np.zeros((8, 8, 1), np.uint8)}
    moved = OpenCVTransform(2, 0.5).function.with_labels(["mask"])(images, 4)
    assert np.array_equal(known(images, 3)["mask"], shift(moved, np.random.default_rng(3))["mask"])
    assert 255 in moved["mask"]


def test_a_geometry_that_cuts_sounds_is_refused():
    with pytest.raises(ValueError, match=r"geometry cuts sounds.*transform=sound_window"):
        transform(geometry=SoundWindow(8))
