"""Every recipe runs for two steps on tiny data, and says in its header what to expect."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

from framework.config.targets import ROOT
from framework.measure.host import disk_kind
from tests.cli.command import EXAMPLES, losses, paceline

PATHS = {
    path.stem: path for place in (ROOT, ROOT / "examples") for path in place.glob("recipes/*.yaml")
}
RECIPES = sorted(PATHS)
TINY = ["max_steps=2", "batch_size=16", "report_every=1", "hydra.run.dir=run"]


def tiny_cifar() -> None:
    """Write a folder like CIFAR-10's JPEG copies: train/ and test/, a subfolder per class."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for name in ("airplane", "bird", "cat"):
            (Path("cifar10") / split / name).mkdir(parents=True)
            for number in range(12):
                image = rng.integers(0, 256, (32, 32, 3), np.uint8)
                cv2.imwrite(f"cifar10/{split}/{name}/{number}.jpg", image)


def tiny_photographs() -> None:
    """Write a folder of JPEGs, a subfolder per class. Some of them are small."""
    rng = np.random.default_rng(0)
    for number in range(40):
        coarse = rng.integers(0, 256, (13, 14, 3), np.uint8)
        path = Path("imagenet", "ab"[number % 2], f"{number}.JPEG")
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), cv2.resize(coarse, (224, 150 if number % 8 == 0 else 208)))


SMALLER = {
    "chips": [
        *("prepare.train.input.items=16", "prepare.train.input.call.size=64"),
        *("prepare.val.input.items=8", "prepare.val.input.call.size=64", "model.image_size=64"),
    ],
    "cifar10_fast": ["model.widths=[4,4,4]"],
    "deblur": ["model.width=4"],
    "denoise": ["prepare.train.input.items=4", "prepare.val.input.items=1"],
    "hear": ["prepare.train.input.items=64", "prepare.val.input.items=16"],
    "recognize": ["prepare.train.input.items=64", "prepare.val.input.items=16"],
}


LONG = ["detect", "segment"]
SHORT = [name for name in RECIPES if not name.startswith("sweep_") and name not in LONG]


@pytest.mark.parametrize(
    "name", [*SHORT, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]
)
def test_a_recipe_trains_two_steps(name):
    tiny_cifar()
    tiny_photographs()
    ours = PATHS[name].parent == ROOT / "recipes"
    place = () if ours else EXAMPLES
    done = paceline("train", *place, f"recipes={name}", *TINY, *SMALLER.get(name, []))
    assert done.code == 0, done.err
    assert len(losses(Path("run"))) == 2
    which = "last.pt" if name == "photos" else "best.pt"  # nothing validates photos
    assert (Path("run") / "checkpoints" / which).exists()


@pytest.mark.parametrize("name", RECIPES)
def test_a_header_gives_keys_of_pack_to_pack_alone(name):
    header = PATHS[name].read_text().splitlines()[1]
    key = re.search(r"\b(input|output|pack)(\.\w+)?=", header)
    assert key is None or "paceline pack " in header[: key.start()]


@pytest.mark.parametrize("data", ["hdf5", "dali", "folder"])
def test_jpegs_train_from_every_store(data):
    tiny_cifar()
    words = [f"data={data}"] + (
        ["data.train=cifar10/train", "data.val=cifar10/test"] if data == "folder" else []
    )
    done = paceline("train", "recipes=cifar10", *words, *TINY)
    assert done.code == 0, done.err
    assert losses(Path("run")) == GOLDEN.setdefault("cifar", losses(Path("run")))


GOLDEN: dict[str, list[float]] = {}  # the first store's losses; the others must have the same


@pytest.mark.slow
def test_dali_decodes_jpegs_within_a_tolerance_of_ours():
    tiny_cifar()
    assert paceline("pack", "input.path=cifar10/train", "output.path=train.h5").code == 0
    words = [
        *("recipes=cifar10", "data.train=train.h5", "data.val=null"),
        *("transform=random_resized_crop", "transform.size=[32,32]"),
    ]
    assert paceline("train", *words, "data=hdf5", *TINY[:3], "hydra.run.dir=ours").code == 0
    assert paceline("train", *words, "data=dali", *TINY[:3], "hydra.run.dir=theirs").code == 0
    assert losses(Path("theirs")) == pytest.approx(
        losses(Path("ours")), rel=0.05
    )  # decoders and resize filters differ


@pytest.mark.slow
def test_the_sweep_recipe_sweeps():
    done = paceline(
        *("train", "recipes=sweep_combinations", "data=hdf5", "parallel=none", "max_steps=2"),
        "hydra.sweep.dir=sweep",
    )
    assert done.code == 0, done.err
    assert len(list(Path("sweep").glob("*/summary.json"))) == 6


SWEEPS = {  # jobs; and words that make it smaller, or that it wants
    "loader": (6, []),
    "storage": (3, []),
    "vectorized": (4, []),
    "formats": (4, []),
    "workers": (4, ["workers.num=0,2"]),
    "augment": (6, []),
    "precision": (2, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_a_sweep_runs_every_job_and_ends_with_a_report(name):
    num_jobs, words = SWEEPS[name]
    if name == "storage" and disk_kind(".") == "memory":
        pytest.skip("needs a disk")
    tiny_cifar()
    tiny_photographs()
    done = paceline("train", f"recipes=sweep_{name}", *TINY[:3], *words, "hydra.sweep.dir=sweep")
    assert done.code == 0, done.err
    assert len(list(Path("sweep").glob("*/summary.json"))) == num_jobs
    assert Path("sweep/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_says_what_to_expect(name):
    header = PATHS[name].read_text().splitlines()[1]
    assert header.startswith("# ")
    assert any(letter.isdigit() for letter in header)
