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
    "data.train=train.h5",
    "data.val=val.lmdb",
    "recipes=null",
    "model={_target_: tests.order.clip_net.ClipNet}",
    "allow_targets=[tests]",
    "objective=regress",
    "objective.input=wave",
    "objective.target=level",
    "augment=none",
    "optim=adam",
    "batch_size=16",
    "report_every=1",
    "sink=[jsonl]",
    "epochs=2",
]


def write_waves(path: str, count: int, seed: int, sigma: float = 0.28) -> None:
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(4, sigma, count).astype(int)
    waves = [rng.uniform(-1, 1, length).astype(np.float32) for length in lengths]
    levels = np.array([np.abs(wave).sum() / 100 for wave in waves], np.float32)
    write_store(path, {"wave": waves, "level": levels}, FIELDS)


@pytest.fixture
def waves():
    write_waves("train.h5", 400, 0)
    write_waves("val.lmdb", 60, 1)


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
    assert all(0 <= line["content"]["padding"] < 0.4 for line in reports)
    assert summary["epochs"] == 2
    assert summary["steps"] == len(reports)
    assert reports[-1]["epoch_left"] == 0
    assert losses(Path("buckets"))[-1] < losses(Path("buckets"))[0]


def test_a_budget_is_kept_and_validation_counts_every_record(waves):
    by_count = train("count", "order=buckets", "optim.lr=0")
    by_budget = train("budget", "order=buckets", "order.max_values=600", "optim.lr=0")
    assert by_budget["steps"] > by_count["steps"]
    assert by_budget["val"]["loss"] == pytest.approx(by_count["val"]["loss"], rel=1e-5)


def test_a_run_that_was_stopped_inside_an_epoch_continues_in_its_buckets(waves):
    words = ["order=buckets", "order.max_values=900", "schedule=constant"]
    train("whole", *words)
    train("part", *words, "max_steps=17")
    done = paceline("train", "resume=part", "max_steps=null")
    assert done.code == 0, done.err
    assert losses(Path("part")) == losses(Path("whole"))
    train("other", *words, "max_steps=17")
    done = paceline("train", "resume=other", "max_steps=null", "order.width=0.3")
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
