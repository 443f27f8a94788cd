import pickle
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
AFFINE = {"name": "Affine", "params": {"rotate": [-30, 30], "p": 1.0}}
GAMMA = {"name": "RandomGamma", "params": {"p": 1.0}}
MANY = [
    AFFINE,
    {"name": "OneOf", "steps": [{"name": "GaussNoise", "params": {"p": 1.0}}, GAMMA]},
    {"name": "CoarseDropout"},
]
IMAGE = pixels(0, 24, 20)


def change(steps, masks=(), evaluation=False):
    return Albumentations(steps, NoTransform(), list(masks), evaluation).function


def results(function, seeds=range(40)):
    """Return the result of each seed as bytes."""
    return [function({"image": IMAGE}, seed)["image"].tobytes() for seed in seeds]


def test_the_seed_alone_decides_in_any_order_thread_and_process():
    many = change(MANY)
    expected = results(many)
    assert len(set(expected)) > 30
    assert results(change(MANY), reversed(range(40)))[::-1] == expected
    assert results(pickle.loads(pickle.dumps(many))) == expected
    with ThreadPoolExecutor(4) as pool:
        threaded = list(pool.map(lambda seed: many({"image": IMAGE}, seed)["image"], range(40)))
    assert [image.tobytes() for image in threaded] == expected


def test_steps_draw_apart_from_each_other():
    square = np.arange(4, dtype=np.uint8).reshape(2, 2, 1).repeat(3, 2)
    flips = change(FLIPS)
    flipped = [flips({"image": square}, seed)["image"].tobytes() for seed in range(200)]
    assert all(flipped.count(kind) > 30 for kind in set(flipped))
    assert len(set(flipped)) == 4


def test_a_mask_is_moved_but_keeps_its_labels():
    labels = (IMAGE[:, :, :1] > 128).astype(np.uint8)
    images = {"image": IMAGE, "labels": labels}
    moved = change([AFFINE, GAMMA], masks=["labels"])(images, 3)["labels"]
    assert moved.shape == labels.shape
    assert set(np.unique(moved)) <= {0, 1}
    assert not np.array_equal(moved, labels)


@pytest.mark.parametrize(
    ("step", "words"),
    [
        pytest.param(
            {"name": "HorizontalFlop"},
            "C130.*pipeline.0.name = HorizontalFlop.*did you mean HorizontalFlip",
            id="typo",
        ),
        pytest.param({"name": "from_dict"}, "C130", id="no transform"),
        pytest.param({"name": "HorizontalFlip", "params": {"q": 1}}, "C131.*'q'", id="parameter"),
        pytest.param(
            {"name": "HorizontalFlip", "param": {}}, "C131.*pipeline.0.param", id="another key"
        ),
        pytest.param(
            {"name": "OneOf", "steps": [{"name": "Blurr"}]},
            "C130.*pipeline.0.steps.0.name = Blurr",
            id="inner step",
        ),
    ],
)
def test_a_wrong_step_is_refused_before_the_first_record(step, words):
    with pytest.raises(ConfigError, match=words):
        change([step])


def test_no_steps_and_pixels_that_are_no_bytes_are_refused():
    with pytest.raises(ValueError, match="pipeline"):
        change([])
    with pytest.raises(ValueError, match=r"float32.*augment="):
        change([{"name": "Normalize"}])({"image": IMAGE}, 0)


def test_without_its_package_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(ResourceError, match=r"R130.*pip install .*albumentations"):
        change(FLIPS)
