import multiprocessing
import os
import signal
import time
from pathlib import Path

import pytest

from framework.errors import ResourceError
from framework.system.lock import locked
from tests.forks import forked

LOCK = Path("x.lock")


def refused(holder):
    return ResourceError(150, str(LOCK), f"{holder} is at it", "wait")


def hold(shared, ready):
    with locked(LOCK, refused, shared=shared):
        ready.put(os.getpid())
        time.sleep(60)


@pytest.fixture
def holder(request):
    """Yield the id of a process that holds the lock."""
    ready = multiprocessing.get_context("fork").SimpleQueue()
    process = forked(hold, getattr(request, "param", False), ready)
    yield ready.get()
    process.kill()
    process.join()


def test_a_lock_is_gone_when_it_was_given_back():
    with locked(LOCK, refused):
        assert f"process {os.getpid()} on " in LOCK.read_text()
    assert os.listdir() == []


def test_a_living_holder_is_named(holder):
    with (
        pytest.raises(ResourceError, match=rf"R150.*x\.lock: process {holder} on .* since 20"),
        locked(LOCK, refused),
    ):
        pass


def test_a_dead_ones_lock_is_free(holder):
    os.kill(holder, signal.SIGKILL)
    with locked(LOCK, refused):
        assert str(os.getpid()) in LOCK.read_text()
    assert os.listdir() == []


@pytest.mark.parametrize("holder", [True], indirect=True)
def test_a_shared_lock_is_shared_but_not_with_one_who_wants_it_alone(holder):
    with locked(LOCK, refused, shared=True):
        pass
    assert LOCK.exists()
    with pytest.raises(ResourceError, match="R150"), locked(LOCK, refused):
        pass


def test_a_link_in_the_locks_place_is_not_followed():
    Path("target").write_text("mine")
    LOCK.symlink_to("target")
    with pytest.raises(ResourceError, match="R101"), locked(LOCK, refused):
        pass
    assert Path("target").read_text() == "mine"
