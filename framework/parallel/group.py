"""Ranks that talk: sums, lists and flags over a process group; gloo on CPU, nccl on GPU."""

import os
import signal
import time
from datetime import timedelta
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore

from framework.errors import ConfigError, DistributedError
from framework.parallel.batch_norm import synchronized
from framework.parallel.launch.ranks import all_up, meet, under_launcher
from framework.system.signal_handlers import handled

_left: list[dist.ProcessGroup | None] = []  # groups that were closed, until the process ends

AGREE_STEPS, AGREE_S = (
    16,
    1.0,
)  # at most so many steps, or seconds, between exchanges of the stop flag: 0.1 ms each on gloo


class RankGroup:
    """A rank among ``world_size``, on ``device``, or on the GPU of its own. ``timeout_s``: how long it waits for another.
    ``sync_batch_norm``: batch statistics over all ranks, without which results depend on their number.

    ConfigError C109 where nobody has started ranks, DistributedError P101 where they cannot meet.
    """

    graph_refusal = "a step of several replicas is not captured"

    def __init__(
        self, choice: str, timeout_s: float, sync_batch_norm: bool, device: torch.device
    ) -> None:
        if not under_launcher():
            what = "this process is not one of several ranks"
            raise ConfigError(
                109, f"parallel = {choice}", what, "start with 'paceline train' or torchrun"
            )
        cuda = device.type == "cuda"
        self.device = (
            torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if cuda else device
        )
        if cuda:
            if (self.device.index or 0) >= torch.cuda.device_count():
                what = (
                    f"rank {self.device.index} of this host finds {torch.cuda.device_count()} GPU"
                )
                raise ConfigError(
                    145,
                    f"parallel = {choice}",
                    what,
                    "start as many ranks as there are GPUs, or set device=cpu",
                )
            torch.cuda.set_device(self.device)
        try:
            # a rank that waits for others, which may be dead, would not hear a handler of Python's, and has nothing to save
            with handled((signal.SIGTERM, signal.SIGUSR1), signal.SIG_DFL):
                store, rank, world_size = meet()
                all_up(store, rank, world_size)
                dist.init_process_group(
                    "nccl" if cuda else "gloo",
                    store=PrefixStore("paceline/group", store),
                    rank=rank,
                    world_size=world_size,
                    timeout=timedelta(seconds=timeout_s),
                    device_id=self.device if cuda else None,
                )
        except (
            RuntimeError,
            ValueError,
        ) as error:  # DistNetworkError, DistStoreError are RuntimeErrors
            what = f"the ranks could not meet ({error})"
            raise DistributedError(
                101, f"parallel = {choice}", what, "look at MASTER_ADDR and MASTER_PORT"
            ) from error
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.sync_batch_norm = sync_batch_norm
        self.notes: tuple[str, ...] = ()
        self._left, self._every, self._agreed_at = 1, 1, time.monotonic()
        self._asked: list[bool] = []

    def trainable(self, model: nn.Module) -> nn.Module:
        """``model`` as ranks may share it. ConfigError C108 for one without a parameter to train, which torch refuses."""
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(108, "model", "has no parameter to train", "unfreeze some")
        return synchronized(model, self.device) if self.sync_batch_norm else model

    def share_start(self, model: nn.Module) -> None:
        """Give ``model`` on every rank the weights and buffers that it has on rank 0."""
        for tensor in (*model.parameters(), *model.buffers()):
            shared = tensor.detach().to(self.device)
            dist.broadcast(shared, 0)
            tensor.data.copy_(shared)

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
        self._asked = [
            asked or flag for asked, flag in zip_longest(self._asked, flags, fillvalue=False)
        ]
        self._left -= 1
        if self._left > 0:
            return [False] * len(flags)
        now = time.monotonic()
        step_s = (now - self._agreed_at) / self._every
        wish = min(AGREE_STEPS, max(1, int(AGREE_S / step_s))) if self.rank == 0 else 0
        *asked, every = self.total(
            torch.tensor([*map(float, self._asked), float(wish)], dtype=torch.float64)
        ).tolist()
        self._left = self._every = int(every)
        self._asked, self._agreed_at = [], now
        return [count > 0 for count in asked]

    def close(self) -> None:
        """Leaves the group, but keeps it: a replica holds it too, and as the last to let go would wait for gloo's threads while it holds the
        interpreter's lock, for which they may wait: for ever (pytorch#56297).
        """
        if dist.is_initialized():
            _left.append(dist.group.WORLD)
            dist.destroy_process_group()
