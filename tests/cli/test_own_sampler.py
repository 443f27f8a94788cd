"""A sampler of the user's own decides the batches, in any number of ranks, and after a kill."""

import os
import signal
from pathlib import Path

import pytest

from framework.system import durable
from tests.cli.command import is_one_error_line, losses, paceline, started, write_linear
from tests.faults import forked

SAMPLERS = '''
import random

import numpy as np
import torch


class ByEpoch:
    """Batches of P classes with K records each."""

    def __init__(self, labels, seed, p, k):
        self.members = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        self.seed, self.p, self.k = seed, p, k

    def set_epoch(self, epoch):
        self.rng = np.random.default_rng([self.seed, epoch])

    def __len__(self):
        return 6

    def __iter__(self):
        for _ in range(6):
            classes = self.rng.choice(len(self.members), self.p, replace=False)
            yield np.concatenate([self.rng.choice(self.members[c], self.k) for c in classes])


class WithState(ByEpoch):
    """The same with a generator of its own."""

    def __init__(self, labels, seed, p, k):
        super().__init__(labels, seed, p, k)
        self.rng = np.random.default_rng(seed)

    def set_epoch(self, epoch):
        pass

    def state_dict(self):
        return self.rng.bit_generator.state

    def load_state_dict(self, state):
        self.rng.bit_generator.state = state


class Records(torch.utils.data.RandomSampler):
    """Single records, which draws from torch's generator."""

    def __init__(self, num_records):
        super().__init__(range(num_records), num_samples=90)
'''
PK = ("+order.p=4", "+order.k=4")
KINDS = {"ByEpoch": PK, "WithState": PK, "Records": ()}
ALLOWED = "allow_targets=[samplers]"
SHORT = ("epochs=2", "batch_size=16", "report_every=1", "sink=[jsonl]", ALLOWED)
SHORT += ("schedule=constant",)  # max_steps would change the others
DDP = ("parallel=ddp", "parallel.num_processes=2", "device=cpu")


@pytest.fixture(autouse=True)
def module():
    Path("samplers.py").write_text(SAMPLERS)
    write_linear(Path("mine"))


def words(kind="ByEpoch", run="run", *more):
    order = (f"+order._target_=samplers.{kind}", *KINDS[kind])
    data = ("--config-dir", "mine", "recipes=linear", f"hydra.run.dir={run}")
    return ("train", *data, *order, *SHORT, *more)


def kill_after_eight_states() -> None:
    """Install a hook in the training process that kills it."""
    seen = []

    def reached(point: str) -> None:
        seen.append(point)
        if seen.count("checkpoint.removed") == 6:
            os.kill(os.getpid(), signal.SIGKILL)

    durable._reached = reached


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_continues_with_the_same_batches(kind):
    saves = ("checkpoint.every_steps=1", "loader=prefetch", "workers.num=2")
    killed = forked.paceline(*words(kind, "run", *saves), before=kill_after_eight_states)
    assert killed.code == -signal.SIGKILL, killed.err
    assert 0 < len(losses(Path("run"))) < 12
    assert paceline("train", "resume=run", "loader=plain", "accumulate=2", ALLOWED).code == 0
    assert paceline(*words(kind, "whole")).code == 0
    whole = losses(Path("whole"))
    assert losses(Path("run")) == pytest.approx(whole, rel=1e-5)
    assert len(whole) == len(set(whole)) == 12


@pytest.mark.slow
def test_ranks_learn_what_one_process_does_and_continue_with_another_number():
    for kind in KINDS:
        assert paceline(*words(kind, f"{kind}-alone")).code == 0
        done = started(*words(kind, f"{kind}-ranks", *DDP, "max_steps=8"))
        assert done.code == 0, done.err
        assert started("train", f"resume={kind}-ranks", "max_steps=null", ALLOWED).code == 0
        shared, alone = (losses(Path(f"{kind}-{how}")) for how in ("ranks", "alone"))
        assert shared == pytest.approx(alone, rel=1e-5)


@pytest.mark.slow
def test_a_sampler_that_gives_each_rank_its_own_ends_all_ranks():
    Path("samplers.py").write_text(SAMPLERS.replace("[self.seed, epoch]", "os.getpid()"))
    text = Path("samplers.py").read_text()
    Path("samplers.py").write_text(f"import os\n{text}")
    done = started(*words("ByEpoch", "run", *DDP))
    assert done.code == 7
    assert "P107" in done.err


def test_a_sampler_must_be_allowed_and_evaluation_needs_none():
    refused = paceline(*(word for word in words() if not word.startswith("allow_targets")))
    assert is_one_error_line(refused, "C105")
    assert paceline(*words("WithState")).code == 0
    assert paceline("evaluate", "run=run", "output=evaluated").code == 0


def test_what_a_sampler_cannot_be_given_or_saved_is_refused():
    assert is_one_error_line(paceline(*words("ByEpoch", "run", "batch_size=8")), "C208")
    text = SAMPLERS.replace("return self.rng.bit_generator.state", 'return {"rng": self.rng}')
    Path("samplers.py").write_text(text)
    assert is_one_error_line(paceline(*words("WithState")), "C208")
