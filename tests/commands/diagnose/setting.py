"""Settings as a command line would make them, over small stores and parts that sleep."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import cv2
import numpy as np

from framework.cli.arguments import Grant
from framework.cli.hydra_app import composed
from framework.commands.diagnose import diagnose, measure_parts
from framework.trials.probe import Probe
from tests.conftest import make_records, write_store

NOBODY = Grant(frozenset(), "")


def setting(*words: str) -> measure_parts.Setting:
    return measure_parts.Setting(*composed(["data.val=null", *words], NOBODY))


def compose_of(*words: str):
    return lambda changes: setting(*diagnose.changed(words, changes))


def write_photos(folder, count=24, height=120, width=160) -> str:
    """Write images in two classes, and return the path of their folder."""
    rng = np.random.default_rng(0)
    for number in range(count):
        place = folder / str(number % 2)
        place.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, (6, 8, 3), np.uint8)
        image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        (place / f"{number}.jpg").write_bytes(cv2.imencode(".jpg", image)[1].tobytes())
    return str(folder)


SLEEPY = """
import time

import torch
from torch import nn

from framework.contracts.training import Outcome


def rest(images, rng):
    time.sleep(0.02)
    return images


class Net(nn.Module):
    def __init__(self, seconds, width=1):
        super().__init__()
        self.layer = nn.Linear(48, 10)
        self.wide = nn.Linear(width, width)
        self.seconds = seconds
        self.width = width

    def forward(self, image):
        time.sleep(self.seconds)  # in the model
        wide = self.wide(torch.ones(self.width, self.width)).mean()
        return self.layer(image.flatten(1).float()) + wide


class Loss:
    def __init__(self, seconds, size=1):
        self.seconds = seconds
        self.size = size

    def __call__(self, model, batch):
        loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        time.sleep(self.seconds)  # in the objective
        large = torch.zeros(self.size, self.size)
        large @ large  # a long operator
        return Outcome(loss, {}, len(batch["label"]))

    def better(self, new, old):
        return True


class Shade:
    num_draws = 0

    def __init__(self, seconds):
        self.seconds = seconds

    def __call__(self, batch, draws):
        time.sleep(self.seconds)  # in the augment
        return batch
"""


@contextmanager
def sleepy_probe(tmp_path, monkeypatch, words=(), **seconds: float) -> Iterator[Probe]:
    """Yield a probe whose model, objective and augment sleep for their ``seconds``."""
    (tmp_path / "sleepy.py").write_text(SLEEPY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "sleepy", raising=False)
    path = write_store(str(tmp_path / "a.h5"), make_records(40))
    given = [
        *("data.val=null", f"data.train={path}", "batch_size=4", "allow_targets=[sleepy]"),
        *("model=null", "+model._target_=sleepy.Net"),
        *("objective=null", "+objective._target_=sleepy.Loss"),
        *("augment=null", "+augment._target_=sleepy.Shade"),
        *(f"+{own}.seconds={seconds.get(own, 0.0)}" for own in ("model", "objective", "augment")),
        *words,
    ]
    probe = measure_parts.Setting(*composed(given, Grant(frozenset({"allow_targets"}), ""))).probe()
    try:
        yield probe
    finally:
        probe.close()
