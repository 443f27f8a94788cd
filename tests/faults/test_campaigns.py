"""A few attempts of each campaign of ``make faults``, which must find nothing."""

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest
import soundfile

from framework.order import batches, draws
from tests.faults import (
    bait,
    cycles,
    foreign,
    mutated,
    options,
    spelling,
    starting,
    topologies,
    training,
)
from tests.faults.guard import guarded
from tests.faults.lanes import repeat
from tests.media.test_sound_video import sound

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


CASES = ("data=tar", "input=hdf5, columns")


@pytest.mark.parametrize("name", CASES)
def test_a_damaged_file_is_named_or_gives_a_result(name):
    assert foreign.damaged(name, random.Random(5)) == ""


def test_a_file_that_is_cut_off_is_named_or_gives_every_record():
    assert foreign.cut("input=lmdb", random.Random(6)) == ""


def test_a_damaged_sound_is_packed_and_read_or_named():
    assert foreign.heard(random.Random(4)) == ""


@pytest.mark.parametrize("kind", bait.KINDS)
def test_a_hostile_file_is_named_or_gives_a_result(kind):
    item = random.Random(kind).choice(bait.KINDS[kind]())
    assert (item.name, bait.attempt(item)) == (item.name, "")


def test_every_bait_has_a_name_of_its_own():
    names = [item.name for item in bait.baits()]
    assert len(set(names)) == len(names) > 500


TRAIN, WORKERS, RANKS, ALL_RANKS, _, _ = starting.WAYS


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return starting.make_place(tmp_path_factory.mktemp("place"))


IMPORTS = [
    ("framework.main", signal.SIGINT, TRAIN),
    pytest.param("torch._dynamo", signal.SIGUSR1, TRAIN, marks=pytest.mark.slow),
    ("torch.distributed.elastic.multiprocessing.api", signal.SIGINT, RANKS),
]


@pytest.mark.parametrize(
    ("module", "number", "way"), IMPORTS, ids=["the command", "an optimizer", "the launcher"]
)
def test_a_signal_in_an_import(place, module, number, way):
    assert starting.wrong_at_import(place, way, number, module) == ""


MOMENTS = [(2.5, signal.SIGINT, WORKERS), (4.0, signal.SIGTERM, ALL_RANKS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment_s", "number", "way"), MOMENTS, ids=[way.name for _, _, way in MOMENTS]
)
def test_a_signal_after_some_time_and_the_same_command_again(place, moment_s, number, way):
    assert starting.wrong(place, way, number, moment_s, twice=True) == ""


DANGERS = {
    "crashed: exit code -11": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "hangs: more than 1 s": lambda: time.sleep(60),
    "grew by 6": lambda: b"x" * (650 << 20),
    "ZeroDivisionError": lambda: 1 // 0,
}


@pytest.mark.parametrize("words", DANGERS)
def test_what_crashes_hangs_or_eats_memory_is_reported(words):
    assert words in guarded(lambda: DANGERS[words]() and "", wait_s=1 if "hangs" in words else 20)


def _cut_short(self, epoch, start, whole=batches.Order._batches):
    for batch in whole(self, epoch, start):
        is_cut = self.world_size > 1 and len(batch) > 3
        yield batch[:-1] if is_cut else batch


def _order_of_ranks(self, epoch, start, stop):
    return draws.permutation(self.num_used, self.seed + self.world_size, epoch)[start:stop]


@pytest.mark.parametrize(("name", "broken"), [("_batches", _cut_short), ("_keys", _order_of_ranks)])
def test_a_wrong_order_is_reported(monkeypatch, name, broken):
    monkeypatch.setattr(batches.Order, name, broken)
    assert failed(topologies.is_whole, 30)


def test_a_file_that_is_left_open_is_reported(monkeypatch):
    kept = []
    monkeypatch.setattr(
        cycles, "ENDINGS", (lambda loader, draw: kept.append(os.open("left", os.O_CREAT)),)
    )
    monkeypatch.setattr(cycles, "WAIT_S", 0.1)
    assert "'file'" in failed(cycles.leaves_nothing, 1)[0]


def test_the_packed_records_are_compared_with_those_of_the_whole_file():
    case = foreign.cases()["input=parquet"]
    outcome = foreign.guarded(foreign._answered, case, case.contents[case.victim], {"label": [5]})
    assert "other records" in outcome


def test_a_file_that_no_error_names_is_reported():
    item = bait.Bait("nameless", lambda: (*foreign.PACK, "input=tar", "input.path=none.tar"), "x")
    assert "does not name x" in bait.attempt(item)


def test_a_canary_and_a_change_outside_the_box_are_reported(monkeypatch):
    for path, words in (("canary", "EXECUTED"), ("../outside.jpg", "FOLLOWED")):
        monkeypatch.setattr(
            bait.guard, "answered", lambda *_, path=path: Path(path).write_text("") and ""
        )
        os.mkdir(path.strip("./"))
        os.chdir(path.strip("./"))
        assert words in bait.attempt(bait.Bait("evil", tuple, ""))
        os.chdir("..")


def test_a_sound_that_a_careless_reader_shortens_would_be_reported(monkeypatch):
    def careless(data, start=0, count=None):
        return soundfile.read(foreign.io.BytesIO(data), dtype="float32")[0]

    monkeypatch.setattr(foreign, "read_sound", careless)
    assert "silently" in foreign._decoded(sound()[:900], sound())
