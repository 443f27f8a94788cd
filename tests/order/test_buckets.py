"""Batches of records with similar lengths."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from framework.contracts.records import Field
from framework.errors import ConfigError
from framework.order.batches import Order
from framework.order.buckets import BucketOrder
from tests.cli.command import is_one_error_line, losses, paceline
from tests.conftest import write_store
from tests.order.facts import Facts, batches

LASTS = st.sampled_from(["short", "drop", "wrap"])
EPOCHS = st.integers(0, 9)
CASES = st.fixed_dictionaries(
    {
        "lengths": st.lists(st.integers(0, 50), min_size=1, max_size=60),
        "batch_size": st.integers(1, 12),
        "max_values": st.none() | st.integers(50, 300),
        "width": st.sampled_from([0.0, 0.08, 0.5]),
        "limit": st.none() | st.integers(1, 70),
        "shuffle": st.booleans(),
        "seed": st.integers(0, 2**40),
    }
)


def make(lengths, batch_size=8, max_values=None, width=0.08, **options):
    """Return the bucketed order of records with these lengths."""
    order = Order(len(lengths), batch_size, **options)
    return BucketOrder(None, max_values, width).order(order, Facts(lengths, lengths), True)


def spread_lengths(count=20_000):
    """Return lengths like those of speech: padding is 40 % of plain batches."""
    generator = torch.Generator().manual_seed(0)
    return (torch.randn(count, generator=generator) * 0.28 + 6).exp().long().numpy()


def padding(lengths, steps):
    real = sum(int(lengths[step].sum()) for step in steps)
    return 1 - real / sum(len(step) * int(lengths[step].max()) for step in steps)


@given(CASES, LASTS, EPOCHS)
def test_batches_keep_their_limits_and_their_number_in_every_epoch(case, last, epoch):
    order, lengths = make(**case, last=last), np.array(case["lengths"])
    steps = batches(order, epoch)
    assert len(steps) == order.num_steps == order.identity["steps"]
    assert sum(map(len, steps)) == order.num_in_batches == order.identity["records"]
    assert min(filter(None, order.smallest_batches), default=0) == min(map(len, steps), default=0)
    if last == "short":
        assert sorted(index for step in steps for index in step) == order.used().tolist()
    for step in steps:
        assert 0 < len(step) <= case["batch_size"]
        if case["max_values"] is not None:
            assert len(step) * int(lengths[step].max()) <= case["max_values"]


@given(CASES, LASTS, EPOCHS, st.sampled_from([2, 3]), st.integers(0, 30))
def test_a_batch_depends_on_neither_ranks_nor_start_nor_history(case, last, epoch, ranks, start):
    order = make(**case, last=last)
    steps = batches(order, epoch)
    among = batches(replace(order, world_size=ranks), epoch)
    assert [sorted(step) for step in among] == [sorted(step) for step in steps]
    if start < order.num_steps:
        assert batches(order, epoch, start) == steps[start:]
    again = make(**case, last=last)
    batches(again, epoch + 1)
    assert batches(again, epoch) == steps


@given(CASES, EPOCHS)
def test_at_most_one_batch_is_short_and_it_is_dropped_or_filled(case, epoch):
    short, dropped, wrapped = (make(**case, last=last) for last in ("short", "drop", "wrap"))
    assert short.num_steps - dropped.num_steps in (0, 1)
    assert short.num_in_batches - dropped.num_in_batches < case["batch_size"]
    steps = batches(short, epoch)
    if not case["shuffle"]:
        assert batches(dropped, epoch) == steps[: dropped.num_steps]
    for some, more in zip(steps, batches(wrapped, epoch), strict=True):
        assert more[: len(some)] == some
        assert set(more[len(some) :]) <= set(short.used().tolist())


def test_a_record_beyond_the_budget_is_refused_with_its_name():
    with pytest.raises(ConfigError, match=r"C201.*max_values = 9: record 2 alone has 12.*=12 or"):
        make([3, 9, 12, 1], max_values=9)


# ---- a whole run


class ClipNet(nn.Module):
    """A net for waveforms of any length: float [B, T], with zeros behind -> float [B]."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 4, 1, bias=False)
        self.last = nn.Linear(4, 1)

    def forward(self, wave: Tensor) -> Tensor:
        features = self.first(wave.unsqueeze(1)).relu().sum(2) / 100
        return self.last(features).squeeze(1)


def write_waves(path, count, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.lognormal(4, 0.28, count).astype(int)
    waves = [rng.uniform(-1, 1, length).astype(np.float32) for length in lengths]
    levels = np.array([np.abs(wave).sum() / 100 for wave in waves], np.float32)
    fields = {"wave": Field("float32", (None,)), "level": Field("float32", ())}
    write_store(path, {"wave": waves, "level": levels}, fields)


def test_a_run_in_buckets_has_little_padding_and_says_so():
    write_waves("train.h5", 400, 0)
    write_waves("val.h5", 60, 1)
    words = [
        *("train", "data.train=train.h5", "data.val=val.h5", "model=null"),
        *(f"+model._target_={__name__}.ClipNet", "allow_targets=[tests]", "objective=regress"),
        *("objective.input=wave", "objective.target=level", "optim=adam", "augment=none"),
        *("epochs=2", "batch_size=16", "report_every=1", "sink=[jsonl]", "order=buckets"),
    ]
    done = paceline(*words, "hydra.run.dir=run")
    assert done.code == 0, done.err
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["content"]["padding"] < 0.08
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    reports = [line for line in lines if line["split"] == "train"]
    shares = [line["content"]["padding"] for line in reports if "content" in line]
    assert len(shares) > 10
    assert all(0 <= share < 0.4 for share in shares)
    assert (summary["epochs"], summary["steps"]) == (2, len(reports))
    assert reports[-1]["epoch_left"] == 0
    assert losses(Path("run"))[-1] < losses(Path("run"))[0]
    done = paceline(*words, "order.field=level")
    assert is_one_error_line(done, "C200")
    assert "choose one of wave" in done.last_line
