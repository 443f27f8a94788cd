import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from framework.errors import ConfigError, ResourceError
from framework.transform.none import NoTransform
from tests.contract.cases import pixels

pytest.importorskip("albumentations")
from framework.transform.albumentations import Albumentations

FLIPS = [{"name": "HorizontalFlip"}, {"name": "VerticalFlip"}]
MANY = [
    {"name": "Affine", "params": {"rotate": [-30, 30], "p": 1.0}},
    {
        "name": "OneOf",
        "steps": [
            {"name": "GaussNoise", "params": {"p": 1.0}},
            {"name": "RandomGamma", "params": {"p": 1.0}},
        ],
    },
    {"name": "CoarseDropout"},
]
IMAGE = pixels(0, 24, 20)


def change(steps, masks=(), evaluation=False):
    return Albumentations(steps, NoTransform(), list(masks), evaluation).function


def same(first, second):
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def test_the_seed_alone_decides_whatever_came_before():
    first, second = change(MANY), change(MANY)
    forward = [first({"image": IMAGE}, seed) for seed in range(8)]
    backward = [second({"image": IMAGE}, seed) for seed in reversed(range(8))][::-1]
    np.random.default_rng(0)
    assert all(same(result, other) for result, other in zip(forward, backward, strict=True))
    assert len({result["image"].tobytes() for result in forward}) == 8


def test_the_steps_are_drawn_apart_from_each_other():
    square = np.arange(4, dtype=np.uint8).reshape(2, 2, 1).repeat(3, 2)
    flips = change(FLIPS)
    flipped = [flips({"image": square}, seed)["image"].tobytes() for seed in range(200)]
    assert all(flipped.count(kind) > 30 for kind in set(flipped))
    assert len(set(flipped)) == 4


def test_a_pair_is_changed_alike():
    pair = change([*FLIPS, MANY[0]])({"blurry": IMAGE, "sharp": IMAGE.copy()}, 3)
    assert np.array_equal(pair["blurry"], pair["sharp"])
    assert not np.array_equal(pair["blurry"], IMAGE)


def test_a_mask_is_moved_but_keeps_its_labels():
    labels = (IMAGE[:, :, :1] > 128).astype(np.uint8)
    moved = change([MANY[0], {"name": "RandomGamma", "params": {"p": 1.0}}], masks=["labels"])(
        {"image": IMAGE, "labels": labels}, 3
    )
    assert moved["labels"].shape == labels.shape
    assert set(np.unique(moved["labels"])) <= {0, 1}
    assert not np.array_equal(moved["labels"], labels)


def test_gray_images_keep_their_channel():
    assert change(FLIPS)({"image": IMAGE[:, :, :1]}, 0)["image"].shape == (24, 20, 1)


def test_threads_do_not_disturb_each_other():
    many, other = change(MANY), change(MANY)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda seed: many({"image": IMAGE}, seed), range(40)))
    assert all(same(result, other({"image": IMAGE}, seed)) for seed, result in enumerate(results))


def test_it_can_be_sent_to_another_process():
    many = change(MANY)
    assert same(pickle.loads(pickle.dumps(many))({"image": IMAGE}, 5), many({"image": IMAGE}, 5))


@pytest.mark.parametrize(("evaluation", "changed"), [(False, False), (True, True)])
def test_outside_training_it_runs_only_where_that_was_asked_for(evaluation, changed):
    result = change(MANY[:1], evaluation=evaluation)({"image": IMAGE}, None)["image"]
    assert np.array_equal(result, IMAGE) is not changed


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            {"name": "HorizontalFlop"},
            "C130.*pipeline.0.name = HorizontalFlop.*did you mean HorizontalFlip",
        ),
        ({"name": "os"}, "C130"),
        ({"name": "from_dict"}, "C130"),
        ({"params": {"p": 1.0}}, "C130.*None"),
        ({"name": "HorizontalFlip", "params": {"q": 1.0}}, "C131.*'q'"),
        ({"name": "HorizontalFlip", "params": {"p": 3}}, "C131.*less than or equal to 1"),
        ({"name": "HorizontalFlip", "param": {"p": 1}}, "C131.*pipeline.0.param"),
        ({"name": "OneOf", "steps": [{"name": "Blurr"}]}, "C130.*pipeline.0.steps.0.name = Blurr"),
    ],
)
def test_a_step_that_cannot_be_is_said_before_the_first_record(step, words):
    with pytest.raises(ConfigError, match=words):
        change([step])


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="pipeline"):
        change([])


def test_pixels_that_are_no_longer_bytes_are_refused():
    with pytest.raises(ValueError, match=r"float32.*augment="):
        change([{"name": "Normalize"}])({"image": IMAGE}, 0)


def test_without_its_package_the_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(ResourceError, match=r"R130.*pip install 'paceline\[albumentations\]'"):
        change(FLIPS)


@pytest.mark.slow
def test_importing_it_asks_nobody_for_a_newer_version():
    code = """
import socket
socket.socket.connect = lambda *a: (_ for _ in ()).throw(SystemExit("it called home"))
from framework.transform.albumentations import Albumentations
from framework.transform.none import NoTransform
Albumentations([{"name": "HorizontalFlip"}], NoTransform(), [], False)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
