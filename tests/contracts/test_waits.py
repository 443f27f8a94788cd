import time

from framework.contracts import waits as module
from framework.contracts.waits import Waits


def passed(waits, wait_s=0.0, step_s=0.0):
    """Wait ``wait_s`` for one batch, and use it for ``step_s``."""
    time.sleep(wait_s)
    waits.arrived()
    time.sleep(step_s)
    waits.ask()


def test_waiting_and_steps_add_up():
    waits = Waits()
    waits.begin()
    passed(waits, wait_s=0.02)
    passed(waits, step_s=0.03)
    assert waits.num_batches == 2
    assert waits.wait_s >= 0.02
    assert waits.start_s >= 0.02
    assert waits.step_s >= 0.03


def test_the_waiting_for_slow_batches_is_counted_apart():
    waits = Waits({1})
    waits.begin()
    for wait_s in (0.0, 0.03, 0.0):
        passed(waits, wait_s)
    assert waits.num_slow == 1
    assert 0.03 <= waits.slow_wait_s <= waits.wait_s
    assert not waits.slow


def test_numbers_start_at_zero_in_each_epoch():
    slow = set()
    waits = Waits(slow)
    for _ in range(2):
        slow.add(0)
        waits.begin()
        passed(waits)
        passed(waits)
    assert waits.num_slow == 2


def test_a_validation_between_two_batches_is_no_step(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.05)
    waits = Waits()
    waits.begin()
    passed(waits, step_s=0.001)
    passed(waits, step_s=0.2)
    assert waits.step_s < 0.2


def test_steps_that_all_take_long_are_counted(monkeypatch):
    times = iter([0.0, 0.0, 30.0, 30.0, 60.0, 60.0, 90.0])
    monkeypatch.setattr(module, "perf_counter", lambda: next(times))
    waits = Waits()
    waits.begin()
    for _ in range(3):
        waits.arrived()
        waits.ask()
    assert waits.step_s == 60.0  # the first may have been a pause


def test_a_look_happens_when_it_is_time():
    calls = []

    def look(now):
        calls.append(now)
        return now + 1000 if len(calls) == 2 else now

    waits = Waits()
    waits.call(look)
    waits.begin()
    for _ in range(4):
        passed(waits)
    assert len(calls) == 2
