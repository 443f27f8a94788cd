"""End the process inside the signal handler while there is no state to save, without raising.

Why nothing here may raise: docs/design/0011-signals.md.
"""

import atexit
import gc
import io
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn
from weakref import WeakSet

from framework.errors import EXIT_INTERRUPTED, EXIT_TERMINATED
from framework.system.portable import KILL, WARNING, blocked, c_function, unblock

NUMBERS = (signal.SIGINT, signal.SIGTERM, *(() if WARNING is None else (WARNING,)))
SAME_S = 1.0  # signals within it are one: a terminal and a launcher may both pass on a Ctrl-C
PROCESSES = Path("/proc/self")
PR_SET_PDEATHSIG = 1  # linux/prctl.h
CHILD_S = 10.0  # how long a child that cleans up after itself may take
LOOK_S = 0.01
LONGEST_S = 5.0  # how long the program waits for all threads: reading a batch takes less
FLUSH_S = 5.0  # how long writing what waits in open files may take
KEEPERS = (b"resource_tracker", b"torch_shm_manager")  # end, and clean up, with their parent
SHOW_CURSOR = "\r\x1b[K\x1b[?25h"


class Stop(NamedTuple):
    """How a signal ends the process."""

    code: int  # the exit code
    reason: str  # the line that is printed


Action = Callable[[Stop], object]

_home = 0
_began_at: float | None = None
_actions: dict[object, Action] = {}
_reasons: list[Callable[[str], str]] = []
_graceful: list[int] = []
# Owners of processes have ``close``, and owners of threads ``stop``, which does not wait for them,
# and ``threads``.
_processes: WeakSet[Any] = WeakSet()
_threads: WeakSet[Any] = WeakSet()


def exit_code(number: int) -> int:
    """Return the exit code of a process that a signal stops with nothing saved."""
    return EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED


@contextmanager
def handled(
    numbers: Iterable[signal.Signals],
    handler: Callable[[int, FrameType | None], object] | signal.Handlers,
) -> Generator[None, None, None]:
    """Install ``handler`` for ``numbers`` until the block ends.

    Does nothing outside the main thread, the only one that may have handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, known in before.items():
            signal.signal(number, known or signal.SIG_DFL)


def install() -> None:
    """Let the signals end this process from now on."""
    global _home, _began_at  # noqa: PLW0603  # a process has one set of handlers
    if _home != os.getpid():  # forked: the entries belong to the parent
        _actions.clear()
        _reasons.clear()
        _graceful.clear()
    _home = os.getpid()
    _began_at = None
    if threading.current_thread() is threading.main_thread():
        for number in NUMBERS:
            signal.signal(number, end)


@contextmanager
def ends_on_signals() -> Generator[None]:
    """Let the signals end this process until the block ends."""
    # The console script has installed the handlers for its whole life.
    for_life = _home == os.getpid() and all(signal.getsignal(n) is end for n in NUMBERS)
    if for_life or threading.current_thread() is not threading.main_thread():
        yield
        return
    with handled(NUMBERS, end):
        install()
        yield


def at_end(action: Action, key: object = None) -> Callable[[], object]:
    """Run ``action`` if a signal ends the process. Return a function that takes this back.

    The action runs between any two instructions of the main thread. It must be short, without
    locks and imports. One action is kept per ``key``.
    """
    key = key or object()
    _actions[key] = action
    return partial(_actions.pop, key, None)


@contextmanager
def undone(action: Action) -> Generator[None]:
    """Run ``action`` if a signal ends the process inside the block."""
    forget = at_end(action)
    try:
        yield
    finally:
        forget()


@contextmanager
def _listed(items: list[Any], item: object) -> Generator[None]:
    items.append(item)
    try:
        yield
    finally:
        items.remove(item)


def message_if_stopped(words: str | Callable[[str], str]) -> AbstractContextManager[None]:
    """Print ``words`` if a signal ends the process inside the block.

    They are a function of a text such as " by SIGTERM", or a text in which it replaces ``{by}``.
    """
    if isinstance(words, str):
        words = partial(words.replace, "{by}")
    return _listed(_reasons, words)


def grace_period(pid: int) -> AbstractContextManager[None]:
    """Let the child ``pid`` clean up after itself if a signal ends this process in the block."""
    return _listed(_graceful, pid)


@contextmanager
def scratch_folder(prefix: str, place: str | None = None) -> Generator[str]:
    """Yield a temporary folder in ``place`` that is also removed if a signal ends the process."""
    with (
        tempfile.TemporaryDirectory(prefix=prefix, dir=place) as folder,
        undone(lambda _: shutil.rmtree(folder, ignore_errors=True)),
    ):
        yield folder


def end(number: int, frame: FrameType | None = None) -> None:
    """Handle a signal: end the children, run the actions, print one line, and leave.

    Returns only in a child that inherited the handler, or if the same signal arrives twice at once.
    """
    global _began_at  # noqa: PLW0603
    if os.getpid() != _home:
        die_by(number)
        return
    if _began_at is not None:
        if time.monotonic() - _began_at > SAME_S:
            os._exit(exit_code(number))
        return
    _began_at = time.monotonic()
    by = "" if number == signal.SIGINT else f" by {signal.Signals(number).name}"
    reason = f"stopped{by}" if by else "interrupted"
    with suppress(Exception):  # no reason, or one that fails
        reason = _reasons[-1](by)
    stop = Stop(exit_code(number), reason)
    with suppress(Exception):
        _end_children()
    for action in reversed(list(_actions.values())):
        with suppress(Exception):
            action(stop)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # the interrupted code may be in the middle of a write
            stream.flush()
    with suppress(OSError):
        line = f"{SHOW_CURSOR if os.isatty(2) else ''}{reason}\n"
        os.write(2, line.encode(errors="backslashreplace"))
    os._exit(stop.code)


def die_by(number: int) -> None:
    """End this process by the signal itself, silently."""
    with suppress(ValueError):  # not the main thread
        signal.signal(number, signal.SIG_DFL)
    unblock([number])
    os.kill(os.getpid(), number)


@contextmanager
def blocked_signals(start_method: str | None = None) -> Generator[None]:
    """Block the signals in this thread, and so in the children that it starts.

    A child calls ``set_all`` once it has its own handlers.
    """
    if start_method in ("spawn", "forkserver"):
        from multiprocessing import resource_tracker  # noqa: PLC0415

        resource_tracker.ensure_running()  # while it starts, it would let the signals through
    with blocked(NUMBERS):
        yield


def set_all(handler: signal.Handlers) -> None:
    """Unblock the signals, and ignore them (``SIG_IGN``) or let them end us (``SIG_DFL``)."""
    for number in NUMBERS:
        signal.signal(number, handler)
    unblock(NUMBERS)


def die_with_parent() -> None:
    """Let Linux kill this process when the thread that started it ends."""
    if (prctl := c_function("prctl")) is not None:
        prctl(PR_SET_PDEATHSIG, KILL)


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not noticed. Linux only."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return PROCESSES.is_dir()
    return stat.rpartition(b")")[2].split()[0] in (b"Z", b"X")


def _end_children() -> None:
    asked = list(_graceful)
    for pid in asked:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + CHILD_S
    while not all(map(has_ended, asked)) and time.monotonic() < until:
        time.sleep(LOOK_S)
    for _ in range(100):  # another thread may start one meanwhile
        living = _living(os.getpid())
        if not living:
            break
        for pid in living:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, KILL)
        time.sleep(LOOK_S)
    for pid in children_of(os.getpid()):
        # In a container without an init they would stay in the process table.
        with suppress(ChildProcessError, AttributeError):
            os.waitpid(pid, os.WNOHANG)


def children_of(pid: int) -> list[int]:
    """Return the processes that ``pid`` has started; without /proc only Python's, and only ours."""
    children: list[int] = []
    if not PROCESSES.is_dir() and pid == os.getpid():
        module = sys.modules.get("multiprocessing.process")  # a handler imports nothing
        return [] if module is None else [child.pid for child in module.active_children()]
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                children += map(int, (task / "children").read_bytes().split())
    return children


def command_of(pid: int) -> bytes:
    """Return the command line of a process, and b"" if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _living(pid: int) -> list[int]:
    """Return the descendants of ``pid`` that still run, the nearest first."""
    living: list[int] = []
    for child in children_of(pid):
        command = command_of(child)
        if not has_ended(child) and not any(keeper in command for keeper in KEEPERS):
            living.append(child)
    return living + [other for child in living for other in _living(child)]


def expects_signals(pid: int) -> bool:
    """Return whether a process catches or ignores SIGTERM. A new one does neither."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        lines = [line for line in status.splitlines() if line.startswith(("SigCgt:", "SigIgn:"))]
        return any(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1 for line in lines)
    return False


def close_at_end(owner: Any) -> None:
    """Close the owner of processes when the program ends, unless it is closed before."""
    _register_end()
    _processes.add(owner)


def stop_at_end(owner: Any) -> None:
    """Stop the owner of threads when the program ends, unless it is closed before.

    A daemon thread that is inside a C++ library then would abort the process with exit code 134.
    """
    _register_end()
    _threads.add(owner)


def remove_at_end(owner: Any) -> None:
    """Note that an owner has closed."""
    _processes.discard(owner)
    _threads.discard(owner)


@cache
def _register_end() -> None:
    """Close and stop all owners before Python waits for worker processes.

    Ours ignore the signal that Python sends them. What is registered last runs first, so the
    modules of others come before.
    """
    import torch.utils.data  # noqa: F401, PLC0415  # pyright: ignore[reportUnusedImport]  # not at start-up

    def leave_to_parent() -> None:
        _processes.clear()
        _threads.clear()

    atexit.register(_end_owners)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=leave_to_parent)


def _end_owners() -> None:
    owners = tuple(_threads)
    for owner in owners:
        owner.stop()
    for processes in tuple(_processes):  # for which threads may wait
        processes.close()
    end = time.monotonic() + LONGEST_S
    for owner in owners:
        for thread in owner.threads:
            thread.join(max(0.0, end - time.monotonic()))


def leave(code: int) -> NoReturn:
    """End the process with an exit code, after everything that Python does before its teardown.

    A thread that comes back from C++ during the teardown aborts the process. So while another
    thread runs, and in every rank (gloo has threads), the process ends without a teardown.
    """
    set_all(signal.SIG_IGN)  # the work is done: a signal must not change the exit code
    if "RANK" not in os.environ:
        # waits for the threads that are no daemons
        threading._shutdown()  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if not sys._current_frames().keys() - {threading.get_ident()}:  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
            sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # its reader may be gone
            stream.flush()
    flusher = threading.Thread(target=_flush_files, name="paceline-flush", daemon=True)
    with suppress(RuntimeError):  # the system starts no more threads
        flusher.start()
        flusher.join(FLUSH_S)  # another thread may hold the lock of a file for long
    os._exit(code)


def _flush_files() -> None:
    """Write what waits in files that nobody has closed, as Python's teardown would."""
    kinds = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
    for item in gc.get_objects():
        if issubclass(type(item), kinds):  # ``isinstance`` would run code of odd objects
            with suppress(Exception):  # closed, or open for reading only
                item.flush()
    if (flush := c_function("fflush")) is not None:
        flush(None)
