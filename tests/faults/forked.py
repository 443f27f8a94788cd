"""The real command in a forked process that can be killed, traced, or put on a small disk."""

import ctypes
import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import torch._dynamo  # noqa: F401  # optimizers import it, which takes a second: here once, instead of in every process

import framework.run  # noqa: F401  # the commands import it when they are sure that they need it
from framework.system.stopping import install
from tests.cli.command import Done, exit_code
from tests.forks import forked

LIMIT_S = 180.0  # hitting it is a hang, also on a busy machine
CLONE_NEWNS, PR_SET_NAME = 0x20000, 15
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 1 << 12, 1 << 14, 1 << 18  # mount.h
CAPABILITIES_V3 = 0x20080522  # linux/capability.h

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts and capabilities: for root only")


class Command:
    """A process that runs ``paceline WORDS`` and leads a session of its own.

    As a context manager, it kills the whole session at the end.

    Args:
        words: The command line.
        before: A function that the process calls before it runs the command.
        traced: Whether the process waits for a tracer before it runs the command.
    """

    def __init__(
        self, *words: str, before: Callable[[], Any] | None = None, traced: bool = False
    ) -> None:
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
        self._up, up = os.pipe()
        self.process = forked(self._do, words, before, traced, up)
        os.close(up)
        os.read(self._up, 1)  # the process has installed its signal handlers
        self.pid: int = self.process.pid or 0

    def _do(
        self, words: tuple[str, ...], before: Callable[[], Any] | None, traced: bool, up: int
    ) -> None:
        os.setsid()
        faulthandler.disable()  # pytest's: it would tell of a SIGBUS that is the test's own
        os.dup2(self.out.fileno(), 1)
        os.dup2(self.err.fileno(), 2)
        # shows the place of a hang
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)  # as Python's own
        install()  # as the console script does in its first line
        os.write(up, b".")
        while traced and not _has_tracer(os.getpid()):
            time.sleep(0.005)
        code = 1
        try:
            if before is not None:
                before()
            code = exit_code(words)
        except BaseException:  # noqa: BLE001  # the test sees the traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)  # the test's own exit handlers are not this process's

    def wait(self, limit_s: float = LIMIT_S) -> Done:
        """Wait for the end and return the outcome. A hang is an AssertionError."""
        self.process.join(limit_s)
        hangs = self.process.exitcode is None
        if hangs:
            os.kill(self.pid, signal.SIGUSR2)
            time.sleep(1)
        self.kill()
        words = []
        for file in (self.out, self.err):
            file.seek(0)
            words.append(file.read().decode(errors="surrogateescape"))
        assert not hangs, f"hangs: {words}"
        return Done(self.process.exitcode, *words)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.join()

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        os.close(self._up)
        self.out.close()
        self.err.close()


def paceline(
    *words: str, before: Callable[[], Any] | None = None, limit_s: float = LIMIT_S
) -> Done:
    """Run ``paceline WORDS`` to its end."""
    with Command(*words, before=before) as command:
        return command.wait(limit_s)


def is_one_line(done: Done, number: str, code: int, *words: str) -> bool:
    """Check that a command ended with one error line that contains ``words``. Return True."""
    errors = [line for line in done.err.splitlines() if re.match(r"error\[[A-Z]\d+\]: ", line)]
    good = len(errors) == 1 and done.err.splitlines()[-1:] == errors and done.code == code
    good = good and "Traceback" not in done.err + done.out
    good = good and errors[0].startswith(f"error[{number}]: ")
    good = good and all(word in errors[0] for word in words)
    assert good, f"exit code {done.code}\n{done.out}\n{done.err}"
    return good


def wait_for(condition: Callable[[], Any], what: str = "it", limit_s: float = LIMIT_S) -> None:
    """Wait until ``condition`` holds."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, f"{what} does not come"
        time.sleep(0.002)


# --------------------------------------------------------------------------------- disks and rights


def mount(source: str, folder: str, kind: str, flags: int, options: str = "") -> None:
    texts = [os.fsencode(text) for text in (source, folder, kind)]
    if ctypes.CDLL(None, use_errno=True).mount(*texts, flags, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "mount", folder)


def own_mounts() -> None:
    """Give this process its own mounts."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNS) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    mount("none", "/", "", MS_PRIVATE | MS_REC)


def small_disk(folder: str, size: str) -> None:
    """Mount a disk of ``size`` (in tmpfs's notation) at ``folder``, for this process alone."""
    own_mounts()
    mount("tmpfs", folder, "tmpfs", 0, f"size={size}")


def read_only(folder: str) -> None:
    """Make ``folder`` read-only for this process."""
    own_mounts()
    mount(folder, folder, "", MS_BIND)
    mount(folder, folder, "", MS_REMOUNT | MS_BIND | MS_RDONLY)


def no_privileges() -> None:
    """Take away root's right to ignore permissions."""
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_V3, 0)
    assert ctypes.CDLL(None).capset(header, (ctypes.c_uint32 * 6)()) == 0


# ------------------------------------------------------------------------------------------- strace


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here")


def _has_tracer(pid: int) -> bool:
    return "TracerPid:\t0" not in Path(f"/proc/{pid}/status").read_text()


@contextmanager
def traced(
    *words: str, options: tuple[str, ...], before: Callable[[], Any] | None = None
) -> Iterator[Command]:
    """Run ``paceline WORDS`` and all its processes under strace, which logs to ``trace.txt``."""
    with Command(*words, before=before, traced=True) as command:
        log = ["strace", "-f", "-qq", "-y", "-o", "trace.txt"]
        strace = subprocess.Popen([*log, "-p", str(command.pid), *options])
        while strace.poll() is None and not _has_tracer(command.pid):
            time.sleep(0.005)
        if strace.poll() is not None:
            pytest.skip("strace may not trace")
        try:
            yield command
        finally:
            command.kill()
            strace.wait()
            print(Path("trace.txt").read_text()[-20_000:])  # shown if the test fails
