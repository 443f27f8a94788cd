"""DistributedDataParallel: a process per replica. The only file that knows process groups, ranks' environment and torchrun.

``launch`` starts ranks with the library form of torchrun; under an existing torchrun the ranks are there already.
"""

import logging
import os
import signal
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from functools import cache
from itertools import zip_longest
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from framework.errors import ConfigError, DistributedError
from framework.parallel.batch_norm import synchronized

PREPARE_S = 6 * 3600  # how long rank 0 may take to pack what is missing
SAVE_S = 600  # how long ranks that were told to stop may take to end their step and save
MEET_S = 120  # how long ranks may take to start
AGREE_STEPS, AGREE_S = 16, 1.0  # at most so many steps, or seconds, between exchanges of the stop flag: 0.1 ms each on gloo


def under_launcher() -> bool:
    """Whether a launcher has made this process one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def environment_rank() -> int:
    return int(os.environ.get("RANK", "0"))


@final
class DistributedParallel:
    """One replica per rank; gloo on CPU, nccl on GPU. Gradients are averaged over ranks.

    ``num_processes``: ranks to start on this machine, where no launcher has; ``sync_batch_norm``: batch statistics over all ranks,
    without which results depend on their number; ``timeout_s``: how long a rank waits for another.
    """

    def __init__(self, num_processes: int, sync_batch_norm: bool, timeout_s: float, *, device: torch.device) -> None:
        if not under_launcher():
            raise ConfigError(
                109, "parallel = ddp", "this process is not one of several ranks", "start with 'paceline train' or torchrun"
            )
        self.sync_batch_norm = sync_batch_norm
        cuda = device.type == "cuda"
        self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else device
        if cuda:
            torch.cuda.set_device(self.device)
        try:
            store, rank, world_size = _rendezvous()
            dist.init_process_group(
                "nccl" if cuda else "gloo",
                store=PrefixStore("paceline/group", store),
                rank=rank,
                world_size=world_size,
                timeout=timedelta(seconds=timeout_s),
                device_id=self.device if cuda else None,
            )
        except (RuntimeError, ValueError) as error:  # DistNetworkError, DistStoreError are RuntimeErrors
            raise DistributedError(
                101, "parallel = ddp", f"the ranks could not meet ({error})", "look at MASTER_ADDR and MASTER_PORT"
            ) from error
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.notes: tuple[str, ...] = ()
        self._left, self._every, self._agreed_at = 1, 1, time.monotonic()
        self._asked: list[bool] = []

    def wrap(self, model: nn.Module) -> nn.Module:
        if self.sync_batch_norm:
            model = synchronized(model, self.device)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(108, "model", "has no parameter to train", "unfreeze some")
        return DistributedDataParallel(model, device_ids=[self.device] if self.device.type == "cuda" else None)

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        return model.no_sync() if not last and isinstance(model, DistributedDataParallel) else nullcontext()

    def total(self, sums: Tensor) -> Tensor:
        shared = sums.to(self.device)
        dist.all_reduce(shared)
        return shared.cpu()

    def gather(self, values: Tensor) -> list[Tensor]:
        lengths = torch.zeros(self.world_size, dtype=torch.float64)
        lengths[self.rank] = len(values)
        lengths = [int(length) for length in self.total(lengths)]
        padded = torch.zeros(max(lengths), dtype=values.dtype)
        padded[: len(values)] = values
        found = [torch.empty_like(padded, device=self.device) for _ in lengths]
        dist.all_gather(found, padded.to(self.device))
        return [one.cpu()[:length] for one, length in zip(found, lengths, strict=True)]

    def agree(self, *flags: bool) -> list[bool]:
        """Exchanged about once a second, so that it costs nothing in fast steps and answers soon in slow ones; rank 0's clock decides."""
        self._asked = [asked or flag for asked, flag in zip_longest(self._asked, flags, fillvalue=False)]
        self._left -= 1
        if self._left > 0:
            return [False] * len(flags)
        now = time.monotonic()
        step_s = (now - self._agreed_at) / self._every
        wish = min(AGREE_STEPS, max(1, int(AGREE_S / step_s))) if self.rank == 0 else 0
        *asked, every = self.total(torch.tensor([*map(float, self._asked), float(wish)], dtype=torch.float64)).tolist()
        self._left = self._every = int(every)
        self._asked, self._agreed_at = [], now
        return [count > 0 for count in asked]

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


@cache
def _rendezvous() -> tuple[Any, int, int]:
    """(store, rank, world size), met once per process. The prefix keeps a restarted attempt from a dead one's addresses."""
    store, rank, world_size = next(iter(rendezvous("env://", timeout=timedelta(seconds=MEET_S))))
    return PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store), rank, world_size


def share_text(text: str | None) -> str:
    """Rank 0's text on every rank, through the launcher's store, before there is a process group. ``text`` is None elsewhere."""
    store, rank, _ = _rendezvous()
    key = "paceline/config"
    if rank == 0:
        assert text is not None
        store.set(key, text)
        return text
    store.wait([key], timedelta(seconds=PREPARE_S))
    return store.get(key).decode()


def _known(options: dict[str, Any]) -> dict[str, Any]:
    """Those that this torch's launcher has."""
    from torch.distributed.launcher.api import LaunchConfig  # noqa: PLC0415

    return {name: value for name, value in options.items() if name in LaunchConfig.__dataclass_fields__}


def launch(num_processes: int, module: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Run ``python -m module arguments`` as ``num_processes`` ranks on this machine, and wait. Raises DistributedError P102 when one fails.

    Returns 0, or the number of the signal that ended it; the ranks got that signal too and had time to save.

    A free port and a clean environment each time, so that jobs of a sweep may follow each other.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415  # slow to import
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=num_processes,
        run_id=f"paceline-{os.getpid()}",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        max_restarts=0,
        monitor_interval=0.1,
        **_known({"signals_to_handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "shutdown_timeout": SAVE_S}),
    )
    for name in list(logging.root.manager.loggerDict):  # each has a level of its own
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # our ranks say themselves what went wrong
    before, handlers = (
        dict(os.environ),
        {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)},
    )
    # restarts of gloo ranks meet stale addresses in a shared store: pytorch#135712
    os.environ.update(environment, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    try:
        elastic_launch(config, sys.executable)("-m", module, *arguments)
        return 0
    except SignalException as error:
        return int(error.sigval)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise DistributedError(
            102, f"rank {rank}", f"ended with exit code {failure.exitcode}", "its own message stands above"
        ) from error
    finally:
        os.environ.clear()
        os.environ.update(before)
        for number, handler in handlers.items():  # the engine leaves its own behind
            signal.signal(number, handler)
