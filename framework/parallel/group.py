"""Ranks that exchange sums, lists and flags over a process group: gloo on CPU, nccl on GPU.

Values of the host go over gloo on GPU machines too. Over nccl, each exchange of flags would wait
for all the steps that the device has queued.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore

from framework.errors import ConfigError, DistributedError
from framework.parallel.batch_norm import synchronized
from framework.parallel.hang import Exchange, own_notes
from framework.parallel.meeting import all_up, choose_interface, meet
from framework.parallel.processes import under_launcher
from framework.system.stopping import handled

_closed: list[dist.ProcessGroup | None] = []  # they live until the process ends: see close
AGREE_STEPS = 16  # the most steps between two exchanges of the flags, which take 0.1 ms on gloo
AGREE_S = 1.0
SAVE_S = 3600.0  # how long rank 0 may save while the others wait


class RankGroup:
    """One of ``world_size`` ranks.

    ``choice`` is named in errors. The rank waits ``timeout_s`` for the others. If ``device`` is a
    GPU, it takes its own. Without ``sync_batch_norm`` results depend on the number of ranks.

    ConfigError C109 if no launcher has started ranks, C145 if the host has too few GPUs;
    DistributedError P101 if the ranks cannot meet.
    """

    graph_refusal: str | None = "a step of several replicas is not captured"
    objective_refusal: str | None = None

    def __init__(
        self, choice: str, timeout_s: float, sync_batch_norm: bool, device: torch.device
    ) -> None:
        where = f"parallel = {choice}"
        if not under_launcher():
            what = "this process is not one of several ranks"
            raise ConfigError(109, where, what, "start with 'paceline train' or torchrun")
        self.device = device
        backend, device_id = "gloo", None
        if device.type == "cuda":
            index = int(os.environ.get("LOCAL_RANK", "0"))
            num_gpus = torch.cuda.device_count()
            if index >= num_gpus:
                what = f"rank {index} of this host finds {num_gpus} GPU"
                fix = "start as many ranks as there are GPUs, or set device=cpu"
                raise ConfigError(145, where, what, fix)
            self.device = device_id = torch.device("cuda", index)
            torch.cuda.set_device(device_id)
            backend = "cpu:gloo,cuda:nccl"
        self._timeout = timedelta(seconds=timeout_s)
        self.exchange = Exchange(own_notes().state)
        self._excepthook = sys.excepthook
        try:
            choose_interface()
            # A rank that waits for others, which may be dead, would not run a Python handler. It
            # has nothing to save.
            with handled((signal.SIGTERM, signal.SIGUSR1), signal.SIG_DFL):
                store, self.rank, self.world_size = meet()
                all_up(store, self.rank, self.world_size)
                dist.init_process_group(
                    backend,
                    # A group that a rank opens after another must not find its addresses.
                    store=PrefixStore(f"paceline/group{len(_closed)}", store),
                    rank=self.rank,
                    world_size=self.world_size,
                    timeout=self._timeout,
                    device_id=device_id,
                )
                longest = max(self._timeout, timedelta(seconds=SAVE_S))
                self._patient: Any = dist.new_group(backend="gloo", timeout=longest)
        # torch's DistNetworkError and DistStoreError are RuntimeErrors.
        except (RuntimeError, ValueError) as error:
            what = f"the ranks could not meet ({error})"
            fix = "look at MASTER_ADDR and MASTER_PORT"
            raise DistributedError(101, where, what, fix) from error
        self.sync_batch_norm = sync_batch_norm
        self.notes: tuple[str, ...] = ()
        self._steps_left = self._every_steps = 1
        self._agreed_at = time.monotonic()
        self._flags: list[bool] = []

    @property
    def home(self) -> torch.device:
        return self.device

    def gather_state(self, state: dict[str, Any]) -> dict[str, Any]:
        return state

    def shard_state(
        self, state: dict[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> dict[str, Any]:
        return state

    def trainable(self, model: nn.Module) -> nn.Module:
        """Return ``model``, with synchronized batch norm if that was chosen.

        ConfigError C108 if no parameter can be trained, which torch would refuse later.
        """
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(108, "model", "has no parameter to train", "unfreeze some")
        if self.sync_batch_norm:
            return synchronized(model, self.device, self.exchange)
        return model

    def rewrap(self, model: nn.Module) -> nn.Module:
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    def share_start(self, model: nn.Module) -> None:
        """Give ``model`` on every rank the weights and buffers that it has on rank 0."""
        for tensor in (*model.parameters(), *model.buffers()):
            shared = tensor.detach().to(self.device)
            with self.exchange.waiting():
                dist.broadcast(shared, 0)
            tensor.data.copy_(shared)

    def time_exchanges(self, mark: Callable[[str], None]) -> None:
        self.exchange.mark = mark

    def total(self, sums: Tensor) -> Tensor:
        return self.sum_on_device(sums).cpu()

    def sum_on_device(self, sums: Tensor) -> Tensor:
        shared = sums.clone()
        with self.exchange:
            dist.all_reduce(shared)
        return shared

    def gather(self, values: Tensor) -> list[Tensor]:
        lengths = torch.zeros(self.world_size, dtype=torch.float64)
        lengths[self.rank] = len(values)
        sizes = [int(length) for length in self.total(lengths)]
        padded = torch.zeros(max(sizes), dtype=values.dtype)
        padded[: len(values)] = values
        gathered = [torch.empty_like(padded) for _ in sizes]
        with self.exchange:
            dist.all_gather(gathered, padded)
        return [tensor[:size] for tensor, size in zip(gathered, sizes, strict=True)]

    def agree(self, *flags: bool) -> list[bool]:
        """Return for each flag whether any rank has set it since the last exchange.

        Ranks exchange the flags every 16 steps, or about once a second by the clock of rank 0 if
        that is sooner. Between exchanges the answer is False.
        """
        pairs = zip_longest(self._flags, flags, fillvalue=False)
        self._flags = [earlier or flag for earlier, flag in pairs]
        self._steps_left -= 1
        if self._steps_left > 0:
            return [False] * len(flags)
        now = time.monotonic()
        steps = 0
        if self.rank == 0:
            step_s = (now - self._agreed_at) / self._every_steps
            steps = min(AGREE_STEPS, max(1, int(AGREE_S / step_s)))
        known = torch.tensor([*self._flags, steps], dtype=torch.float64)
        *counts, every_steps = self.total(known).tolist()
        self._steps_left = self._every_steps = int(every_steps)
        self._agreed_at = now
        self._flags = []
        return [count > 0 for count in counts]

    def wait(self) -> None:
        work: Any = dist.all_reduce(torch.zeros(1), group=self._patient, async_op=True)
        with self.exchange.waiting():
            if self.rank == 0:
                work.wait(self._timeout)
            else:
                work.wait()

    def close(self) -> None:
        """Leave the group, but keep the object alive.

        A replica holds it, too. As the last owner, it would wait for gloo's threads while it holds
        the interpreter's lock, which they may need: pytorch#56297. torch's hook for exceptions,
        which would name a rank of this group for ever, goes too.
        """
        if dist.is_initialized():
            sys.excepthook = self._excepthook
            _closed.extend((dist.group.WORLD, self._patient))
            dist.destroy_process_group()
