import os
import signal
import time

import pytest

from framework.errors import DataError, UserCodeError
from framework.pack.engine.process_pool import ProcessPool


def work(task, say):
    """Do what a task's first word says. Say and return its value if nothing fails."""
    kind, value = task
    if kind == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "bad":
        raise DataError(106, value, "is bad", "mend it")
    if kind == "odd":

        class Local(Exception):
            """Cannot be pickled."""

        raise Local(value)
    if kind == "memory":
        raise MemoryError
    if kind == "sleep":
        time.sleep(value)
    say(value)
    return os.getpid(), value


def results(pool, tasks):
    return [(event.kind, event.task, event.value) for event in pool.run(tasks)]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_every_task_is_done_and_heard(num_workers):
    heard = []
    with ProcessPool(work, num_workers, lambda _, said: heard.append(said)) as pool:
        done = results(pool, [("square", n) for n in range(9)])
    assert sorted(value for _, _, (_, value) in done) == sorted(heard) == list(range(9))
    pids = {pid for _, _, (pid, _) in done}
    assert (pids == {os.getpid()}) == (num_workers == 0)
    assert len(pids) <= max(1, num_workers)


def test_a_killed_process_is_reported_with_its_task_and_the_rest_goes_on():
    with ProcessPool(work, 2, lambda *_: None) as pool:
        outcomes = results(pool, [("die", 0), *(("square", n) for n in range(5))])
    assert [(kind, value) for kind, task, value in outcomes if task[0] == "die"] == [
        ("lost", -signal.SIGKILL)
    ]
    assert sum(kind == "done" for kind, _, _ in outcomes) == 5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_our_errors_come_as_they_are(num_workers):
    with (
        pytest.raises(DataError, match=r"D106.*item 5"),
        ProcessPool(work, num_workers, lambda *_: None) as pool,
    ):
        results(pool, [("bad", "item 5")])


def test_an_error_that_cannot_be_pickled_comes_as_text():
    words = r"U100.*test_process_pool\.py:\d+: in work: Local: words"
    with pytest.raises(UserCodeError, match=words), ProcessPool(work, 1, lambda *_: None) as pool:
        results(pool, [("odd", "words")])
