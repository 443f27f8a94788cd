import pytest

from framework.contracts.slow_records import (
    SlowRecord,
    SlowRecords,
    joined_blocks,
    slow_block,
    slow_words,
    waits_for,
)
from framework.contracts.waits import Waits

HUGE = SlowRecord(7, "huge.jpg", 2, 0.5, 9_000_000)


class Finder:
    """A source whose slow records are known."""

    def __init__(self, slow):
        self.slow = slow
        self.slow_batches = {3}

    def slow_records(self):
        return self.slow


def waited(num_batches=10, num_slow=2, wait_s=1.0, slow_wait_s=0.8):
    waits = Waits()
    waits.num_batches = num_batches
    waits.num_slow = num_slow
    waits.wait_s = wait_s
    waits.slow_wait_s = slow_wait_s
    return waits


def block(**changes):
    slow = SlowRecords([HUGE], num_slow=2, num_records=1000, slow_s=1.0, read_s=1.998, numbers=[7])
    return {**slow_block(Finder(slow), waited()), **changes}


def test_a_source_without_a_ledger_has_no_slow_records():
    assert slow_block(object(), Waits()) == {}
    assert slow_block(Finder(None), Waits()) == {}
    assert waits_for(object()).slow == set()


def test_a_loader_counts_by_the_numbers_of_its_source():
    source = Finder(None)
    assert waits_for(source).slow is source.slow_batches


def test_what_is_saved_is_the_waiting_beyond_that_of_other_batches():
    known = block()
    assert known["usual_s"] == pytest.approx(0.001)
    assert known["saved_s"] == pytest.approx(0.8 - 2 * 0.2 / 8)


def test_no_more_is_saved_than_the_records_took():
    slow = SlowRecords([HUGE], num_slow=1, num_records=100, slow_s=0.1, read_s=0.199, numbers=[7])
    assert slow_block(Finder(slow), waited())["saved_s"] == pytest.approx(0.1 - 0.001)


def test_a_line_names_the_records_and_what_they_cost():
    words = slow_words(block(), train_s=3.0)
    assert "2 of 1,000 reads took 1.0 of 2.0 thread-seconds" in words
    assert "80 % of the waiting" in words
    assert words.endswith("about 0.8 of 3.0 s: huge.jpg (500 ms, 9.0 MB)")


@pytest.mark.parametrize(
    ("changes", "train_s"),
    [({}, 100.0), ({"num_slow": 100}, 3.0), ({"saved_s": 0.0}, 3.0)],
    ids=["a long run", "many are slow", "nothing to save"],
)
def test_slow_records_that_do_not_matter_get_no_line(changes, train_s):
    assert slow_words(block(**changes), train_s) == ""


def test_without_slow_records_there_is_no_line():
    assert slow_words({}, 3.0) == ""


def test_many_records_are_counted_after_the_first_three():
    records = [HUGE._replace(name=f"{n}.jpg", size_bytes=0)._asdict() for n in range(5)]
    words = slow_words(block(records=records), 3.0)
    assert words.endswith("0.jpg (500 ms), 1.jpg (500 ms), 2.jpg (500 ms) and 2 more")


def test_the_blocks_of_ranks_become_one():
    slower = HUGE._replace(name="b.jpg", mean_s=2.0)._asdict()
    joined = joined_blocks([block(), {}, block(records=[slower], numbers=[3, 7])])
    assert [(record["name"], record["rank"]) for record in joined["records"]] == [
        ("b.jpg", 2),
        ("huge.jpg", 0),
    ]
    assert joined["num_slow"] == 4
    assert joined["numbers"] == [3, 7]
    assert joined["usual_s"] == pytest.approx(0.001)
    assert joined_blocks([{}, {}]) == {}
