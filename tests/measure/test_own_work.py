"""Rows of own work, made from marks with times of their own."""

import pytest

from framework.contracts.span import EXCHANGE, OWN
from framework.measure import own_work
from framework.measure.own_work import SKIPPED, OwnWork

STEP = (
    ("wait", 1),
    ("copy", 2),
    ("forward", 4),
    (OWN, 8),
    (EXCHANGE, 100),
    ("backward", 0),
    ("optimizer", 16),
    (OWN, 32),
    (EXCHANGE, 200),
    ("report", 64),
)


class Marked:
    """Marks with the seconds before each, and what came of them."""

    def __init__(self, has_host_times=True):
        self.spans, self.now = {}, 1000.0
        self.work = OwnWork(self.add, has_host_times)

    def add(self, name, seconds):
        self.spans[name] = self.spans.get(name, 0.0) + seconds

    def mark(self, *marks):
        for name, seconds in marks:
            self.now += seconds
            self.work.mark(name, seconds, self.now)
        return self


def test_own_work_belongs_to_the_next_span_and_exchanges_to_a_span_of_their_own():
    spans = Marked().mark(*STEP).spans
    assert spans == {
        "wait": 1,
        "copy": 2,
        "forward": 4,
        "backward": 8,
        EXCHANGE: 300,
        "optimizer": 16,
        "report": 96,
    }


def test_a_row_ends_with_the_exchange_of_the_gradients():
    marked = Marked().mark(*STEP, *STEP, ("wait", 1))
    first, second = marked.work.take()
    assert first == (0.0, 1015.0, 100.0, 1, 2, 4, 8, 0, 0)
    # the update and the report of the first step delay the exchange of the second
    assert second[2:] == (300.0, 1, 2, 4, 8, 16, 96)
    assert marked.work.take() == []


def test_a_rank_is_seen_to_arrive_as_if_it_had_waited_for_nobody():
    """It came to its first exchange at 1007, and then worked for 8 seconds."""
    early = (("forward", 7), (OWN, 0), (EXCHANGE, 50), (OWN, 8), (EXCHANGE, 9), ("backward", 0))
    row = Marked().mark(*early, ("optimizer", 1)).work.take()[0]
    assert row[1:3] == (1015.0, 59.0)


def test_skipped_time_is_nobodys_work_and_no_exchange():
    validation = ((OWN, 500), (EXCHANGE, 70), (SKIPPED, 900))
    marked = Marked().mark(*STEP, *validation, *STEP)
    assert marked.spans[EXCHANGE] == 600
    assert sum(marked.spans.values()) == 2 * sum(seconds for _, seconds in STEP)
    assert marked.work.take()[1][1] == 1000 + 427 + 1470 + 15


@pytest.mark.parametrize("num_steps", [10, 11, 40, 41, 1000])
def test_rows_take_fixed_memory_and_keep_the_same_steps_on_all_ranks(monkeypatch, num_steps):
    monkeypatch.setattr(own_work, "MOST_ROWS", 10)
    marked = Marked()
    for _ in range(num_steps):
        marked.mark(*STEP)
        assert len(marked.work._rows) <= 10
    numbers = [row[0] for row in marked.work.take()]
    stride = numbers[1] - numbers[0]
    assert numbers == list(range(0, num_steps, int(stride)))
    assert len(numbers) >= 5
