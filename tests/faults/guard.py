"""Run dangerous work in a forked process, and report a crash, a hang or high memory use."""

import ctypes
import faulthandler
import multiprocessing
import os
import re
import resource
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from framework.main import run
from tests.forks import forked

LIMIT_S = 5  # of processor time: more is a hang, and so is
WAIT_S = 20.0  # on a machine that has other things to do
MOST_BYTES = 512 << 20
SPARE_BYTES = 4 << 30  # of addresses: stacks and the like are more than what is ever used
M_PERTURB = -6  # malloc.h: what malloc fills memory with
CODES = (2, 3, 4, 5, 6, 7, 8)  # docs/errors.md


def guarded(work: Callable[..., str], *arguments: object, wait_s: float = WAIT_S) -> str:
    """Run ``work`` in a forked process. Return its result, "" or a line, or how it ended."""
    receive, send = multiprocessing.Pipe(duplex=False)
    child = forked(_do, work, arguments, send)
    send.close()
    try:
        outcome = receive.recv() if receive.poll(wait_s) else f"hangs: more than {wait_s:g} s"
    except EOFError:
        child.join()
        outcome = f"crashed: exit code {child.exitcode}"
        if child.exitcode == -signal.SIGXCPU:
            outcome = f"hangs: more than {LIMIT_S} s of work"
    if child.is_alive():
        child.kill()
    child.join()
    receive.close()
    return outcome


def _do(work: Callable[..., str], arguments: tuple[object, ...], send: Connection) -> None:
    faulthandler.disable()
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", 1, errors="backslashreplace", closefd=False) for number in (1, 2)
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _kilobytes("VmRSS")
    resource.setrlimit(resource.RLIMIT_AS, (1024 * _kilobytes("VmSize") + SPARE_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S + 1))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        outcome = work(*arguments)
    except BaseException as error:  # noqa: BLE001  # that is what is looked for
        outcome = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    grown = 1024 * (_kilobytes("VmHWM") - before)
    send.send(outcome or (f"grew by {grown >> 20} MiB" if grown > MOST_BYTES else ""))
    os._exit(0)


def _kilobytes(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text[text.index(f"{name}:") :].split()[1])


def fill_memory_with(byte: int) -> None:
    """Fill all new memory with ``byte``, so that reads of unwritten memory differ between bytes."""
    ctypes.CDLL(None).mallopt(M_PERTURB, byte)


def answered(*words: str) -> str:
    """Run ``paceline WORDS`` guarded. Return "" if it succeeds or refuses in one line."""
    code = run([*words])
    text = Path("err").read_text(errors="replace")
    lines = [line for line in text.splitlines() if re.match(r"error\[[A-Z]\d+\]: ", line)]
    if "Traceback" in text or code not in (0, *CODES):
        return f"exit code {code}: {' '.join(text.split())[-400:]}"
    if code and code != 8 and (len(lines) != 1 or text.splitlines()[-1:] != lines):
        return f"exit code {code}, but not one line: {' '.join(text.split())[-400:]}"
    return ""
