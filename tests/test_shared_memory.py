"""Which shared memory is left behind, and whose test it was."""

import fcntl
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.shared_memory import other_test_processes_wait, this_test_runs, torch_segments

MAKE_SEGMENT = """
import os, sys
name = f"torch_{os.getpid()}_test"
open(f"/dev/shm/{name}", "w").close()
print(name, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def maker():
    """Yield a process that has made shared memory, and the name of that memory."""
    command = [sys.executable, "-c", MAKE_SEGMENT]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        name = process.stdout.readline().strip()
        yield process, name
        process.stdin.close()
    Path("/dev/shm", name).unlink()


def test_shared_memory_counts_once_its_process_is_dead(maker):
    process, name = maker
    assert name not in torch_segments()
    process.kill()
    process.wait()
    assert name in torch_segments()


def test_shared_memory_of_this_process_counts():
    path = Path(f"/dev/shm/torch_{os.getpid()}_test")
    path.touch()
    try:
        assert path.name in torch_segments()
    finally:
        path.unlink()


def test_a_test_that_left_something_waits_for_the_test_beside_it(tmp_path):
    with open(tmp_path / "gw1.running", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waits = threading.Thread(target=other_test_processes_wait, args=(tmp_path,))
        waits.start()
        waits.join(0.3)
        assert waits.is_alive()
        fcntl.flock(file, fcntl.LOCK_UN)
        waits.join()


def test_a_child_that_is_still_running_does_not_hold_the_lock_of_its_test(tmp_path):
    with this_test_runs(tmp_path):
        [path] = tmp_path.glob("*.running")
        child = subprocess.Popen(
            [sys.executable, "-c", "input()"],
            stdin=-1,
            stderr=subprocess.DEVNULL,
            pass_fds=[int(fd) for fd in os.listdir("/proc/self/fd") if _is_open_on(fd, path)],
        )
    try:
        other_test_processes_wait(tmp_path)
    finally:
        child.kill()
        child.communicate()


def _is_open_on(fd: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except OSError:
        return False
