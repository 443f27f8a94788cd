"""Datasets that know nothing of Paceline train as they are."""

import json
import shutil
import wave
from pathlib import Path

import numpy as np
import pytest

from framework.config.targets import ROOT
from framework.media.decode import encode_png
from tests.cli.command import paceline
from tests.contract.cases import pixels

EXAMPLES = ROOT / "examples" / "own_datasets"


@pytest.fixture(autouse=True)
def here():
    for path in EXAMPLES.glob("*.py"):
        shutil.copy(path, path.name)


def best_of(*words):
    """Train a run, and return its best validation."""
    done = paceline("train", "data=dataset", *words, "hydra.run.dir=run", "workers.num=1")
    assert done.code == 0, done.err
    return json.loads(Path("run/summary.json").read_text())["best"]


def write_pictures(folder):
    for number in range(24):
        image = pixels(number, 40, 30) // 2
        image[..., number % 2] += 120
        path = Path(folder, ("red", "green")[number % 2], f"{number}.png")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(np.ascontiguousarray(image.transpose(2, 0, 1))))


def write_clips(folder):
    Path(folder).mkdir()
    for number in range(24):
        pitch = 0.2 + 0.8 * (number % 2)
        samples = 9000 * np.sin(pitch * np.arange(400 + 10 * number))
        with wave.open(f"{folder}/{number:02}.wav", "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(samples.astype(np.int16).tobytes())
        Path(folder, f"{number:02}.txt").write_text(("low", "high")[number % 2])


def test_pictures_train_with_facts_from_the_data():
    write_pictures("train")
    best = best_of(
        *("data.train={_target_: pictures.Pictures, folder: train}", "epochs=10", "batch_size=8"),
        *("data.val={_target_: pictures.Pictures, folder: train, mirror: false}", "model=null"),
        *("+model._target_=framework.model.digits_net.DigitsCNN", "+model.in_channels=auto"),
        *("+model.num_classes=auto", "+model.width=8", "allow_targets=[pictures]"),
    )
    assert best["accuracy"] > 0.9
    facts = json.loads(Path("run/run.json").read_text())
    assert facts["data"]["train"]["classes"] == ["green", "red"]
    assert len(facts["auto"]["augment.mean"]) == 3


def test_clips_of_any_length_train_with_a_collate_of_their_own():
    write_clips("clips")
    best = best_of(
        *("data.train={_target_: speech.Clips, folder: clips}", "data.collate=speech.collate"),
        *("data.val={_target_: speech.Clips, folder: clips}", "augment=none", "epochs=20"),
        *("model=null", "+model._target_=spelling.FirstLetter", "optim=adamw", "optim.lr=0.03"),
        *("objective=null", "+objective._target_=spelling.Spelling", "batch_size=8"),
        "allow_targets=[speech,spelling]",
    )
    assert best["right"] > 0.9


def test_moons_of_tuples_train_with_a_transform_of_their_own():
    best = best_of(
        "data.train={_target_: moons.Moons, count: 200, transform: {_target_: moons.Shift}}",
        *("data.val={_target_: moons.Moons, count: 50}", "data.fields=[point,label]"),
        *("augment=none", "model=null", "+model._target_=torch.nn.Linear", "+model.in_features=2"),
        *("+model.out_features=2", "objective.input=point", "allow_targets=[moons]", "epochs=5"),
        "batch_size=20",
    )
    assert best["accuracy"] > 0.75
