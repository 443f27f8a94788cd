"""Start ranks with torchrun's library, which also restarts lost ranks, and wait for them."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType
from typing import Any

from framework.errors import DistributedError
from framework.parallel.launch.hosts import Meeting
from framework.system.stopping import (
    NUMBERS,
    SAME_S,
    children_of,
    command_of,
    deaf_children,
    end,
    expects_signals,
    handled,
)

SAVE_S = 600  # how long stopped ranks may take to end their step and save
LOOK_S = 0.1
JOIN_S = 600  # how long hosts wait for a lost one


def launch(
    num_processes: int,
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    max_restarts: int = 0,
    meeting: Meeting | None = None,
) -> int:
    """Run ``python -m module arguments`` as ranks on this machine, and wait for them.

    Every call uses a free port and restores the environment, so the jobs of a sweep can follow each
    other. The ranks get ``environment`` in addition. ``meeting`` knows the other hosts.

    Returns:
        0, or the number of the signal that ended the ranks after they had time to save.

    Raises:
        DistributedError: P102: a rank failed once too often. P101: other hosts do not come.
    """
    # These modules are slow to import.
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415
    from torch.distributed.launcher.api import elastic_launch  # noqa: PLC0415

    config = _launch_config(num_processes, max_restarts, meeting)
    engine = _Engine(lambda: elastic_launch(config, sys.executable)("-m", module, *arguments))
    try:
        with _surroundings(environment):
            return engine.run(_Ranks(module, num_processes), leave_alone=meeting is not None)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        what = f"ended with exit code {failure.exitcode}"
        fix = "its own message stands above"
        raise DistributedError(102, f"rank {rank}", what, fix) from error
    except RendezvousError as error:
        what = f"the hosts do not meet ({' '.join(str(error).split()) or type(error).__name__})"
        where = "parallel"
        if meeting is not None:
            where = f"parallel.endpoint = {meeting.endpoint}"
        raise DistributedError(101, where, what, "look at the other hosts") from error


def _launch_config(num_processes: int, max_restarts: int, meeting: Meeting | None) -> Any:
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig  # noqa: PLC0415

    options: dict[str, Any] = {
        "shutdown_timeout": SAVE_S,
        "logs_specs": DefaultLogsSpecs(log_dir=os.devnull),
    }
    known = LaunchConfig.__dataclass_fields__  # of this version of torch
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=f"paceline-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port
        max_restarts=max_restarts,
        monitor_interval=0.1,
        **{name: value for name, value in options.items() if name in known},
    )
    if meeting is None:
        return config
    return replace(
        config,
        min_nodes=meeting.num_nodes,
        max_nodes=meeting.num_nodes,
        run_id="paceline",
        rdzv_endpoint=str(meeting.endpoint),
        rdzv_configs={"is_host": meeting.leads, "join_timeout": JOIN_S},
        local_addr=meeting.address,
    )


@contextmanager
def _surroundings(environment: dict[str, str]) -> Generator[None, None, None]:
    """Set the ranks' environment inside the block, and silence torchrun: ranks report."""
    for name in list(logging.root.manager.loggerDict):  # each has its own level
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    before = dict(os.environ)
    # Restarted gloo ranks find stale addresses in a shared store: pytorch#135712.
    os.environ.update(environment, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class _Ranks:
    """The rank processes of this host, which run ``module``, and which of them got a signal."""

    def __init__(self, module: str, num_processes: int) -> None:
        self._module = module.encode()
        self._num_processes = num_processes
        self._told: set[int] = set()
        self._seen = False
        self._at_work = False

    def look(self) -> list[int]:
        """Return the ranks that handle signals, as they do after their first step."""
        living = self._living()
        ready = [pid for pid in living if expects_signals(pid)]
        self._seen = self._seen or bool(living)
        self._at_work = self._at_work or len(ready) >= self._num_processes
        return ready

    def starting(self) -> bool:
        """Return whether some ranks have not done their first step."""
        return not self._at_work and not self.all_gone()

    def tell(self, number: int) -> None:
        """Send a signal once to every rank that handles it. A restarted rank gets it later."""
        for pid in set(self.look()) - self._told:
            self._told.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def all_gone(self) -> bool:
        """Return whether there were ranks, and none is left."""
        return self._seen and not self._living()

    def _living(self) -> list[int]:
        return [pid for pid in children_of(os.getpid()) if self._module in command_of(pid)]


class _Engine:
    """torch's launcher in a thread, while the main thread handles signals.

    In the main thread a signal handler would raise at any point of the launcher.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._error: BaseException | None = None
        self._signal = 0
        self._signal_at = 0.0

    def run(self, ranks: _Ranks, leave_alone: bool) -> int:
        """Return the number of the signal that stopped the ranks, or 0. Raise the engine's error.

        Before all ranks are at work there is nothing to save, and a signal ends this process. With
        ``leave_alone``, the other hosts are not waited for once the stopped ranks have ended.
        """
        thread = threading.Thread(target=self._run, name="paceline-launch", daemon=True)
        is_main = threading.current_thread() is threading.main_thread()
        with handled(NUMBERS, self._note):
            with deaf_children():
                thread.start()
            while thread.is_alive():
                thread.join(LOOK_S)
                if is_main:
                    self._obey(ranks)
                if self._signal and leave_alone and ranks.all_gone():
                    return self._signal
        if self._error is not None and not self._signal:
            raise self._error
        return self._signal

    def _run(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  # raised again by the main thread
            self._error = error

    def _note(self, number: int, frame: FrameType | None) -> None:
        if not self._signal:
            self._signal = number
            self._signal_at = time.monotonic()
        elif time.monotonic() - self._signal_at > SAME_S:
            end(number)

    def _obey(self, ranks: _Ranks) -> None:
        if not self._signal:
            ranks.look()
            return
        ranks.tell(self._signal)
        if ranks.starting() or time.monotonic() - self._signal_at > SAVE_S:
            end(self._signal)
