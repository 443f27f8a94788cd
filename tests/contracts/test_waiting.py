"""Waits of a loader, the slow records and the late ranks behind them, and the words for these."""

import pytest

from framework.contracts import waits as module
from framework.contracts.span import LateRank


class Clock:
    """Replaces the clock of Waits: it advances by what a batch waits and its step takes."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def pass_batches(self, waits, *seconds):
        """Pass batches, each with (seconds of waiting, seconds of its step)."""
        waits.begin()
        for wait_s, step_s in seconds:
            self.now += wait_s
            waits.arrived()
            self.now += step_s
            waits.ask()


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(module, "perf_counter", made)
    return made


def test_waiting_and_steps_add_up_and_slow_batches_are_counted_apart(clock):
    waits = module.Waits({1})
    clock.pass_batches(waits, (0.5, 0.25), (2.0, 0.25), (0.25, 0.25))
    assert (waits.num_batches, waits.num_slow) == (3, 1)
    assert (waits.start_s, waits.wait_s, waits.slow_wait_s, waits.step_s) == (0.5, 2.75, 2.0, 0.75)
    assert not waits.slow


def test_numbers_go_on_over_epochs_that_are_read_without_a_stop(clock):
    waits = module.Waits({3})
    for first in (0, 2):
        waits.begin(first)
        for _ in range(2):
            clock.now += 1.0
            waits.arrived()
            waits.ask()
    assert (waits.num_slow, waits.start_s) == (1, 2.0)


def test_a_validation_between_two_batches_is_no_step_but_steps_that_all_take_long_are(clock):
    waits = module.Waits()
    clock.pass_batches(waits, (0.0, 0.25), (0.0, 30.0), (0.0, 0.25))
    assert waits.step_s == 0.5
    waits = module.Waits()
    clock.pass_batches(waits, (0.0, 30.0), (0.0, 30.0), (0.0, 30.0))
    assert waits.step_s == 60.0  # the first may have been a pause


HUGE = module.SlowRecord(7, "huge.jpg", 2, 0.5, 9_000_000)
SLOW = module.SlowRecords(
    [HUGE], num_slow=2, num_records=1000, slow_s=1.0, read_s=1.998, numbers=[7]
)
BRIEF = module.SlowRecords(
    [HUGE], num_slow=1, num_records=100, slow_s=0.1, read_s=0.199, numbers=[7]
)


def block(slow=SLOW, **changes):
    waits = module.Waits()
    waits.num_batches, waits.num_slow = 10, 2
    waits.wait_s, waits.slow_wait_s = 1.0, 0.8
    return {**module.slow_block(slow, waits), **changes}


def test_without_slow_records_there_is_neither_block_nor_line():
    assert block(None) == module.joined_blocks([{}, {}]) == {}
    assert module.slow_words({}, 3.0) == ""


def test_what_is_saved_is_the_waiting_beyond_others_but_no_more_than_the_records_took():
    assert block()["usual_s"] == pytest.approx(0.001)
    assert block()["saved_s"] == pytest.approx(0.8 - 2 * 0.2 / 8)
    assert block(BRIEF)["saved_s"] == pytest.approx(0.1 - 0.001)


def test_a_line_names_the_first_three_records_and_what_they_cost():
    words = module.slow_words(block(), train_s=3.0)
    assert "2 of 1,000 reads took 1.0 of 2.0 thread-seconds" in words
    assert "80 % of the waiting" in words
    assert words.endswith("about 0.8 of 3.0 s: huge.jpg (500 ms, 9.0 MB)")
    records = [HUGE._replace(name=f"{n}.jpg", size_bytes=0)._asdict() for n in range(5)]
    words = module.slow_words(block(records=records), 3.0)
    assert words.endswith("0.jpg (500 ms), 1.jpg (500 ms), 2.jpg (500 ms) and 2 more")


@pytest.mark.parametrize(
    ("changes", "train_s"),
    [({}, 100.0), ({"num_slow": 100}, 3.0), ({"saved_s": 0.0}, 3.0)],
    ids=["a long run", "many are slow", "nothing to save"],
)
def test_slow_records_that_do_not_matter_get_no_line(changes, train_s):
    assert module.slow_words(block(**changes), train_s) == ""


def test_the_blocks_of_ranks_become_one():
    slower = HUGE._replace(name="b.jpg", mean_s=2.0)._asdict()
    joined = module.joined_blocks([block(), {}, block(records=[slower], numbers=[3, 7])])
    names = [(record["name"], record["rank"]) for record in joined["records"]]
    assert names == [("b.jpg", 2), ("huge.jpg", 0)]
    assert (joined["num_slow"], joined["numbers"]) == (4, [3, 7])
    assert joined["usual_s"] == pytest.approx(0.001)


LATE = LateRank(3, "backward", 0.71, 0.012, 0.09)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({}, "by 12 ms"), ({"late_s": 0.00123}, "by 1.23 ms"), ({"late_s": 1.5}, "by 1500 ms")],
    ids=["ms", "less", "more"],
)
def test_a_late_rank_is_named_in_a_sentence(changes, words):
    start = f"rank 3 is late in 71 % of the steps, in `backward`, {words}; "
    assert LATE._replace(**changes).words == f"{start}the others lost 9 % of the run"
