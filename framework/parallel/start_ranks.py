"""Start ranks with torchrun's library, which restarts all ranks if one dies, and await them."""

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
from framework.parallel.meeting import Meeting
from framework.system.stopping import (
    NUMBERS,
    SAME_S,
    children_of,
    command_of,
    deaf_children,
    end,
    expects_signals,
    handled,
    stop_at_end,
)

SAVE_S = 600  # the most time that stopped ranks get to end their step and save
LOOK_S = 0.1  # the time between two checks of the ranks and the launcher
JOIN_S = 600  # the most time that hosts wait for a host that was lost


def launch(
    num_processes: int,
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    max_restarts: int = 0,
    meeting: Meeting | None = None,
) -> int:
    """Run ``python -m module arguments`` as ranks on this machine, and wait for their end.

    A call restores the environment and uses a free port on one host, so a sweep can call it for
    one job after another.

    Args:
        num_processes: The number of ranks on this machine.
        module: The module that each rank runs.
        arguments: The command line of each rank.
        environment: Variables for the ranks, besides those of this process.
        max_restarts: How often all ranks may be restarted because one of them failed.
        meeting: How to reach the other hosts; None: there are no others.

    Return 0, or the number of the signal that ended the ranks after they had time to save.
    DistributedError P102 if ranks fail too often, P101 if the hosts cannot reach each other.
    """
    # These modules are slow to import.
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    options: dict[str, Any] = {}
    if "shutdown_timeout" in LaunchConfig.__dataclass_fields__:  # not in older versions of torch
        options["shutdown_timeout"] = SAVE_S
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=f"paceline-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",  # a free port
        max_restarts=max_restarts,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        **options,
    )
    where = "parallel"
    if meeting is not None:
        where = f"parallel.endpoint = {meeting.endpoint}"
        config = replace(
            config,
            min_nodes=meeting.num_nodes,
            max_nodes=meeting.num_nodes,
            run_id="paceline",
            rdzv_endpoint=str(meeting.endpoint),
            rdzv_configs={"is_host": meeting.leads, "join_timeout": JOIN_S},
            local_addr=meeting.address,
        )
    entry = elastic_launch(config, sys.executable)
    ranks = _Ranks(module, num_processes, lambda: entry("-m", module, *arguments))
    try:
        with _surroundings(environment):
            return ranks.run(meeting is not None)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        what = f"ended with exit code {failure.exitcode}"
        fix = "read its own message above"
        raise DistributedError(102, f"rank {rank}", what, fix) from error
    except RendezvousError as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        what = f"the hosts cannot reach each other ({reason})"
        raise DistributedError(101, where, what, "check the other hosts") from error


@contextmanager
def _surroundings(environment: dict[str, str]) -> Generator[None, None, None]:
    """Set the ranks' environment inside the block, and silence torchrun for good.

    The ranks report their own errors.
    """
    for name in list(logging.root.manager.loggerDict):  # each logger has its own level
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
    """The rank processes of this host, and torch's launcher, in a thread that signals do not reach.

    The ranks are recognized by the ``module`` that they run. ``call`` runs the launcher.
    """

    def __init__(self, module: str, num_processes: int, call: Callable[[], object]) -> None:
        self._module = module.encode()
        self._num_processes = num_processes
        self._call = call
        self._error: BaseException | None = None  # of the launcher
        self._signal = 0  # the number of the first signal; 0: none came
        self._signal_at = 0.0  # when the first signal came
        self._signaled: set[int] = set()  # ids of the ranks that got it from this process
        self._seen = False  # whether there was a rank at all
        self._all_trained = False  # whether all ranks have done their first step
        self.threads: list[threading.Thread] = []

    def stop(self) -> None:
        """Do nothing: the launcher ends by itself once the ranks of all hosts have ended."""

    def run(self, has_other_hosts: bool) -> int:
        """Run the launcher. Return the number of the signal that stopped the ranks, or 0.

        Until all ranks have done their first step there is nothing to save, so a signal ends this
        process. After a signal, do not wait for a launcher that waits for other hosts. An error of
        the launcher is raised here.
        """
        thread = threading.Thread(target=self._launch, name="paceline-launch", daemon=True)
        is_main = threading.current_thread() is threading.main_thread()
        with handled(NUMBERS, self._on_signal):
            with deaf_children():
                thread.start()
            self.threads.append(thread)
            stop_at_end(self)
            while thread.is_alive():
                thread.join(LOOK_S)
                if is_main:
                    self._look()
                if self._signal and has_other_hosts and self._all_gone():
                    return self._signal
        if self._error is not None and not self._signal:
            raise self._error
        return self._signal

    def _launch(self) -> None:
        try:
            self._call()
        except BaseException as error:  # noqa: BLE001  # raised by ``run``
            self._error = error

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._signal:
            self._signal = number
            self._signal_at = time.monotonic()
        elif time.monotonic() - self._signal_at > SAME_S:
            end(number)

    def _look(self) -> None:
        """Look at the ranks, and pass on a signal once to each that handles it."""
        living = self._living()
        ready = {pid for pid in living if expects_signals(pid)}  # after its first step
        self._seen = self._seen or bool(living)
        self._all_trained = self._all_trained or len(ready) >= self._num_processes
        if not self._signal:
            return
        for pid in ready - self._signaled:
            self._signaled.add(pid)
            with suppress(ProcessLookupError):
                os.kill(pid, self._signal)
        starting = not self._all_trained and not self._all_gone()
        if starting or time.monotonic() - self._signal_at > SAVE_S:
            end(self._signal)

    def _all_gone(self) -> bool:
        return self._seen and not self._living()

    def _living(self) -> list[int]:
        return [pid for pid in children_of(os.getpid()) if self._module in command_of(pid)]
