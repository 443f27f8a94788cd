"""Whole runs over records of different lengths."""

import json
from pathlib import Path

import numpy as np
import pytest

from framework.contracts.records import Field
from tests.cli.command import is_one_error_line, losses, paceline
from tests.conftest import write_store

FIELDS = {"wave": Field("float32", (None,)), "level": Field("float32", ())}
BASE = [
    "train",
    "--config-dir",
    "conf",
    "recipes=clips",
    "data.train=train.h5",
    "data.val=val.h5",
    "allow_targets=[tests]",
    "report_every=1",
    "sink=[jsonl]",
]
RECIPE = """# @package _global_
# the level of waves of different lengths
defaults:
  - override /model: clip
  - override /objective: regress
  - override /optim: adam
  - override /augment: none
epochs: 2
batch_size: 16
objective: {input: wave, target: level}
"""


def write_waves(path: str, count: int, seed: int, sigma: float = 0.28) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(4, sigma, count).astype(int)
    waves = [rng.uniform(-1, 1, length).astype(np.float32) for length in lengths]
    levels = np.array([np.abs(wave).sum() / 100 for wave in waves], np.float32)
    write_store(path, {"wave": waves, "level": levels}, FIELDS)


@pytest.fixture
def waves():
    write_waves("train.h5", 400, 0)
    write_waves("val.h5", 60, 1)
    for name in ("model", "recipes"):
        Path("conf", name).mkdir(parents=True)
    Path("conf/model/clip.yaml").write_text("# a net\n_target_: tests.order.clip_net.ClipNet\n")
    Path("conf/recipes/clips.yaml").write_text(RECIPE)


def train(folder, *words):
    done = paceline(*BASE, f"hydra.run.dir={folder}", *words)
    assert done.code == 0, done.err
    return json.loads((Path(folder) / "summary.json").read_text())


def test_a_run_in_buckets_has_little_padding_and_says_so(waves):
    plain = train("plain", "order=full")
    summary = train("buckets", "order=buckets")
    assert plain["content"]["padding"] > 0.3
    assert summary["content"]["padding"] < 0.08
    lines = [json.loads(line) for line in Path("buckets/metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if line["split"] == "train"]
    shares = [line["content"]["padding"] for line in reports if "content" in line]
    assert len(shares) > 10
    assert all(0 <= share < 0.4 for share in shares)
    assert summary["epochs"] == 2
    assert summary["steps"] == len(reports)
    assert reports[-1]["epoch_left"] == 0
    assert losses(Path("buckets"))[-1] < losses(Path("buckets"))[0]


def test_a_budget_is_kept_and_validation_counts_every_record(waves):
    by_count = train("count", "order=buckets", "optim.lr=0")
    by_budget = train("budget", "order=buckets", "order.max_values=600", "optim.lr=0")
    assert by_budget["steps"] > by_count["steps"]
    assert by_budget["val"]["loss"] == pytest.approx(by_count["val"]["loss"], rel=1e-5)


@pytest.mark.slow
def test_a_run_that_was_stopped_inside_an_epoch_continues_in_its_buckets(waves):
    words = ["order=buckets", "order.max_values=900", "schedule=constant"]
    train("whole", *words)
    train("part", *words, "max_steps=17")
    resumed = ["train", "max_steps=null", "allow_targets=[tests]"]
    done = paceline(*resumed, "resume=part")
    assert done.code == 0, done.err
    assert losses(Path("part")) == losses(Path("whole"))
    train("other", *words, "max_steps=17")
    done = paceline(*resumed, "resume=other", "order.width=0.3")
    assert is_one_error_line(done, "K105")


@pytest.mark.slow
def test_ranks_share_the_buckets(waves):
    words = ["order=buckets", "order.max_values=900", "limit=150", "epochs=1"]
    train("alone", *words)
    train("among", *words, "parallel=ddp", "parallel.num_processes=2")
    assert losses(Path("among")) == pytest.approx(losses(Path("alone")), rel=1e-4)


def test_an_order_without_lengths_names_the_fields(waves):
    done = paceline(*BASE, "order=buckets", "order.field=level")
    assert is_one_error_line(done, "C200")
    assert "choose one of wave" in done.last_line
    done = paceline("train", "data=synthetic", "order=buckets")
    assert is_one_error_line(done, "C200")
