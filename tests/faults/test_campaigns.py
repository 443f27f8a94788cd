"""A few attempts of each campaign of faults, which must find nothing.

``make faults`` runs the campaigns at full length.
"""

import os
import signal
import time
from functools import partial

import pytest

from framework.order.batches import Order
from framework.order.permutation import permutation
from tests.faults import cycles, mutated, options, spelling, topologies, training
from tests.faults.guard import guarded
from tests.faults.lanes import repeat

SEED = 7


def failed(attempt, times, seed=SEED):
    return repeat("", attempt, times, seed, lanes=1).failed


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Return where the first run packs the digits."""
    return str(tmp_path_factory.mktemp("digits") / "digits")


MUTATED = {"decoded": 6, "read": 2, "read_by_dali": 1, "packed": 2, "stored": 3, "packed_inputs": 1}


@pytest.mark.parametrize("name", MUTATED)
def test_a_mutated_input_gives_the_right_result_or_one_line(name):
    assert not failed(getattr(mutated, name), MUTATED[name])


@pytest.mark.slow
def test_a_mutated_recipe_trains_or_is_refused_in_one_line(dataset):
    assert not failed(partial(mutated.recipe, dataset), 4)


@pytest.mark.slow
def test_a_mutated_checkpoint_whose_checksum_fits_is_resumed_or_refused_in_one_line(tmp_path):
    place = training.make_place(tmp_path, ("fp32",))
    assert not failed(partial(mutated.resumed, place, str(tmp_path)), 4, seed=0)


def test_any_cut_of_an_epoch_has_every_record_once():
    assert not failed(topologies.is_whole, 100)


@pytest.mark.slow
def test_a_letter_wrong_is_answered_with_the_right_word():
    wrong = failed(spelling.is_named, 20)
    assert all(spelling.MISSED in line for line in wrong)
    assert len(wrong) <= 1


@pytest.mark.slow
def test_a_loader_left_in_any_way_leaves_nothing():
    assert not failed(cycles.leaves_nothing, 30)


@pytest.mark.slow
def test_memory_stays_over_many_loaders():
    assert not failed(cycles.memory_stays, 1)


def test_any_combination_of_options_trains_or_is_refused_with_a_rule(dataset):
    assert not failed(partial(options.drawn, dataset), 1)


@pytest.mark.slow
def test_any_combination_of_options_with_ranks_too(dataset):
    assert not failed(partial(options.drawn_ddp, dataset), 1)


# ------------------------------------------------------------------ the checks must be able to fail


DANGERS = {
    "crashed: exit code -11": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hangs: more than 1 s": lambda: time.sleep(60),
    "grew by 6": lambda: b"x" * (650 << 20),
    "ZeroDivisionError": lambda: 1 // 0,
}


@pytest.mark.parametrize("words", DANGERS)
def test_what_crashes_hangs_or_eats_memory_is_reported(words):
    assert words in guarded(lambda: DANGERS[words]() and "", wait_s=1 if "hangs" in words else 20)


def _cut_short(self, batch, cut=Order._rank_shares):
    return cut(self, batch[:-1] if len(batch) > 3 else batch)


def _order_of_ranks(self, epoch, start, stop):
    return permutation(self.num_used, self.seed + self.world_size, epoch)[start:stop]


@pytest.mark.parametrize(
    ("name", "broken"), [("_rank_shares", _cut_short), ("_shuffled", _order_of_ranks)]
)
def test_a_wrong_order_is_reported(monkeypatch, name, broken):
    monkeypatch.setattr(Order, name, broken)
    assert failed(topologies.is_whole, 30)


def test_a_file_that_is_left_open_is_reported(monkeypatch):
    kept = []
    monkeypatch.setattr(
        cycles, "ENDINGS", (lambda loader, draw: kept.append(os.open("left", os.O_CREAT)),)
    )
    monkeypatch.setattr(cycles, "WAIT_S", 0.1)
    assert "'file'" in failed(cycles.leaves_nothing, 1)[0]
