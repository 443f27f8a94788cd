"""The rank that hangs is named by the ranks that have waited for it, with its line."""

import copy
import multiprocessing
import os
import re
import signal

import pytest
import torch

from framework.contracts.span import EXCHANGE, OWN
from framework.errors import HungRankError
from framework.parallel import hang
from tests.forks import forked

TIMED_OUT = "[gloo] Timed out waiting 5000ms for recv operation to complete"
CUT_OFF = "[gloo] Connection closed by peer"


def be_rank(state, ready):
    """Be a rank in a loop, whose notes begin with ``state``."""
    hang.own_notes.cache_clear()
    hang.own_notes()[0][0] = state
    ready.put(hang.own_peer())
    while True:
        pass


@pytest.fixture
def other(request, monkeypatch):
    """Yield the id of another rank, for which this process waits as rank 0."""
    monkeypatch.setattr(hang, "PATIENCE_S", 0.3)
    hang.own_notes.cache_clear()
    ready = multiprocessing.get_context("fork").SimpleQueue()
    process = forked(be_rank, getattr(request, "param", hang.WORKS), ready)
    hang.set_peers([hang.own_peer(), ready.get()])
    yield process.pid
    process.kill()
    process.join()
    hang.set_peers([])
    hang.own_notes.cache_clear()


def named(words):
    """Return the error about another rank after an exchange failed with ``words``."""
    try:
        raise RuntimeError(words)
    except RuntimeError as error:
        return hang.hung_rank(error, 0, 5.0)


def test_a_rank_in_a_loop_is_named_with_its_line_and_that_of_the_rank_that_waited(other):
    error = named(TIMED_OUT)
    line = r"rank 1: hangs at \S*test_hang.py:\d+ \(be_rank\), while the others waited 5 s \(rank 0"
    assert re.search(line, str(error))
    assert isinstance(error, HungRankError)
    assert error.rank == 1


def test_the_lines_of_all_ranks_are_notes_of_the_error(other):
    (note,) = named(TIMED_OUT).__notes__
    assert re.search(r"rank 0:\n.* in named\n(.*\n)*rank 1:\n(.*\n)*.* in be_rank\n", note)


def test_a_stopped_rank_is_named(other):
    os.kill(other, signal.SIGSTOP)
    assert f"rank 1: hangs, since process {other} is stopped" in str(named(TIMED_OUT))


def test_a_rank_that_hangs_is_killed_in_the_end(other):
    named(TIMED_OUT)
    hang.end_useless()
    assert os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT).si_status == signal.SIGKILL


@pytest.mark.parametrize("other", [hang.WAITS, hang.TIMED_OUT], indirect=True)
def test_a_rank_that_waits_too_is_not_named(other):
    assert named(TIMED_OUT) is None


def test_a_rank_is_not_named_if_no_rank_waited_in_vain(other):
    assert named(CUT_OFF) is None


def test_a_rank_that_has_ended_does_not_hang(other):
    os.kill(other, signal.SIGKILL)
    os.waitid(os.P_PID, other, os.WEXITED | os.WNOWAIT)
    assert named(TIMED_OUT) is None


def test_an_exchange_is_marked_at_both_ends():
    marks, exchange = [], hang.Exchange()
    with exchange:
        pass
    exchange.mark = marks.append
    with exchange:
        assert marks == [OWN]
    exchange.end()
    assert marks == [OWN, EXCHANGE]


def test_a_copied_model_keeps_the_exchange_of_its_rank():
    exchange = hang.Exchange()
    assert copy.deepcopy({"model": exchange})["model"] is exchange


def test_what_is_compiled_marks_nothing():
    marks, exchange = [], hang.Exchange()
    exchange.mark = marks.append

    def doubled(x):
        exchange.begin()
        x = 2 * x
        exchange.end()
        return x

    compiled = torch.compile(doubled, backend="eager", fullgraph=True)
    assert compiled(torch.ones(2)).tolist() == [2.0, 2.0]
    assert marks == []
