"""Start ranks with the library form of torchrun, and wait for them. Its engine restarts what is lost; nothing here does so itself."""

import logging
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from framework.errors import DistributedError
from framework.parallel.hosts import Meeting

SAVE_S = 600  # how long ranks that were told to stop may take to end their step and save
JOIN_S = 600  # how long hosts wait for one that was lost


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Those that this torch's launcher has."""
    from torch.distributed.launcher.api import LaunchConfig  # noqa: PLC0415

    return {name: value for name, value in options.items() if name in LaunchConfig.__dataclass_fields__}


def _rendezvous(meeting: Meeting | None) -> dict[str, Any]:
    """Where this host's ranks meet those of others; a free port where there are none."""
    if meeting is None:
        return {"min_nodes": 1, "max_nodes": 1, "run_id": f"paceline-{os.getpid()}", "rdzv_endpoint": "localhost:0"}
    return {
        "min_nodes": meeting.num_nodes,
        "max_nodes": meeting.num_nodes,
        "run_id": "paceline",
        "rdzv_endpoint": str(meeting.endpoint),
        "rdzv_configs": {"is_host": meeting.leads, "join_timeout": JOIN_S},
        "local_addr": meeting.address,
    }


@contextmanager
def _surroundings(environment: dict[str, str]) -> Generator[None, None, None]:
    """The ranks' environment, and quiet: our ranks say themselves what went wrong. The engine leaves handlers behind, which are put back."""
    for name in list(logging.root.manager.loggerDict):  # each has a level of its own
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    before = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    # restarts of gloo ranks meet stale addresses in a shared store: pytorch#135712
    os.environ.update(environment, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def launch(
    num_processes: int,
    module: str,
    arguments: list[str],
    environment: dict[str, str],
    max_restarts: int = 0,
    meeting: Meeting | None = None,
) -> int:
    """Run ``python -m module arguments`` as ``num_processes`` ranks on this machine, and wait. Raises DistributedError P102 when one fails,
    and all were started anew ``max_restarts`` times; P101 where the other hosts of ``meeting`` are waited for in vain.

    Returns 0, or the number of the signal that ended it; the ranks got that signal too and had time to save.

    A free port and a clean environment each time, so that jobs of a sweep may follow each other.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415  # slow to import
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    config = LaunchConfig(
        nproc_per_node=num_processes,
        rdzv_backend="c10d",
        max_restarts=max_restarts,
        monitor_interval=0.1,
        **_rendezvous(meeting),
        **_known({"signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "shutdown_timeout": SAVE_S}),
    )
    try:
        with _surroundings(environment):
            elastic_launch(config, sys.executable)("-m", module, *arguments)
        return 0
    except SignalException as error:
        return int(error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise DistributedError(
            102, f"rank {rank}", f"ended with exit code {failure.exitcode}", "its own message stands above"
        ) from error
    except RendezvousError as error:
        what = f"the hosts do not meet ({' '.join(str(error).split()) or type(error).__name__})"
        where = "parallel" if meeting is None else f"parallel.endpoint = {meeting.endpoint}"
        raise DistributedError(101, where, what, "look at the other hosts") from error
