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
from typing import Any, final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.distributed_c10d import PrefixStore

from framework.contracts.parallel import Parallel
from framework.errors import ConfigError, DistributedError
from framework.parallel.hang import Exchange, own_notes
from framework.parallel.processes import under_launcher
from framework.parallel.start_ranks import all_up, choose_interface, meet
from framework.system.stopping import NUMBERS, handled

_closed: list[dist.ProcessGroup | None] = []  # they live until the process ends: see close
AGREE_STEPS = 16  # the most steps between two exchanges of the flags, which take 0.1 ms on gloo
AGREE_S = 1.0
SAVE_S = 3600.0  # how long rank 0 may save while the others wait


class RankGroup(Parallel):
    """One of ``world_size`` ranks.

    ``name`` is that of the choice. The rank waits ``timeout_s`` for the others. If ``device`` is a
    GPU, it takes its own. Without ``sync_norm`` results depend on the number of ranks.

    ConfigError C109 if no launcher has started ranks, C145 if the host has too few GPUs;
    DistributedError P101 if the ranks cannot meet.
    """

    graph_refusal: str | None = "a step of several replicas is not captured"

    def __init__(self, name: str, timeout_s: float, sync_norm: bool, device: torch.device) -> None:
        where = f"parallel = {name}"
        if not under_launcher():
            what = "this process is not one of several ranks"
            raise ConfigError(109, where, what, "start with 'paceline train' or torchrun")
        super().__init__(device=device)
        backend, device_id = "gloo", None
        if device.type == "cuda":
            index = int(os.environ.get("LOCAL_RANK", "0"))
            num_gpus = torch.cuda.device_count()
            if index >= num_gpus:
                what = f"rank {index} of this host finds {num_gpus} GPU"
                fix = "start as many ranks as there are GPUs, or set device=cpu"
                raise ConfigError(145, where, what, fix)
            self.device = self.home = device_id = torch.device("cuda", index)
            torch.cuda.set_device(device_id)
            backend = "cpu:gloo,cuda:nccl"
        self._timeout = timedelta(seconds=timeout_s)
        self.exchange = Exchange(own_notes()[0])
        self._excepthook = sys.excepthook
        try:
            choose_interface()
            # A rank that waits for others, which may be dead, would not run a Python handler.
            with handled(NUMBERS[1:], signal.SIG_DFL):
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
        self.sync_batch_norm = sync_norm
        self._steps_left = self._every_steps = 1
        self._agreed_at = time.monotonic()
        self._flags: list[bool] = []

    def trainable(self, model: nn.Module) -> nn.Module:
        """Return ``model``, with synchronized batch norm if that was chosen.

        ConfigError C108 if no parameter can be trained, which torch would refuse later.
        """
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(108, "model", "has no parameter to train", "unfreeze some")
        if self.sync_batch_norm:
            return synchronized(model, self.device, self.exchange)
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


_BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def synchronized(model: nn.Module, device: torch.device, exchange: Exchange) -> nn.Module:
    """Replace every batch norm of a model by one with the statistics of all ranks.

    torch refuses its SyncBatchNorm on the CPU, where ``exchange`` measures how long ours waits for
    other ranks. Names in the model's state stay.
    """
    if device.type == "cuda":
        return nn.SyncBatchNorm.convert_sync_batchnorm(model)
    if isinstance(model, _BatchNorm):
        return HostSyncBatchNorm(model, exchange)
    for name, child in model.named_children():
        replacement = synchronized(child, device, exchange)
        if replacement is not child:
            setattr(model, name, replacement)
    return model


class HostSyncBatchNorm(nn.Module):
    """A batch norm on the CPU with the mean and variance of all ranks' records."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(self, old: _BatchNorm, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange
        self.eps = old.eps
        self.momentum = old.momentum
        self.affine = old.affine
        # The same parameters, because the optimizer may hold them already.
        self.weight = old.weight
        self.bias = old.bias
        self.register_buffer("running_mean", old.running_mean)
        self.register_buffer("running_var", old.running_var)
        self.register_buffer("num_batches_tracked", old.num_batches_tracked)
        self.train(old.training)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training and self.running_mean is not None:
            return nn.functional.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        wide = x if x.dtype == torch.float64 else x.float()
        if self.affine:
            affine = self.weight.to(wide.dtype), self.bias.to(wide.dtype)
        else:
            affine = wide.new_ones(wide.shape[1]), wide.new_zeros(wide.shape[1])
        result, mean, variance, count = _Normalized.apply(wide, *affine, self.eps, self._exchange)
        if self.running_mean is not None:
            assert self.running_var is not None
            assert self.num_batches_tracked is not None
            unbiased = variance * (count / (count - 1).clamp(min=1)).to(variance.dtype)
            with torch.no_grad():
                self.num_batches_tracked += 1
                momentum = self.momentum
                if momentum is None:
                    momentum = 1 / float(self.num_batches_tracked)
                self.running_mean.lerp_(mean, momentum)
                self.running_var.lerp_(unbiased, momentum)
        return result.to(x.dtype)


@final
class _Normalized(torch.autograd.Function):
    """Normalize x (float [B, C, ...]) by all ranks' mean [C] and biased variance [C].

    It uses torch's kernels for one process, and one exchange in each direction. It returns the
    normalized x, the mean, the variance and the number of values per channel.

    Source: sums of variances by Chan et al., "Updating formulae and a pairwise algorithm for
    computing sample variances", 1979.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, eps: float, exchange: Exchange
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        stats = torch.batch_norm_update_stats(x, None, None, 0.0)
        own = torch.cat([x.new_tensor([x.numel() / x.shape[1]]), *stats])
        gathered = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        exchange.begin()  # torch.compile does not know our context
        dist.all_gather(gathered, own)
        exchange.end()
        every = torch.stack(gathered).double()  # in rank order, so that all ranks add alike
        counts = every[:, :1]
        means, variances = every[:, 1:].chunk(2, dim=1)
        count = counts.sum()
        mean = (counts * means).sum(0) / count
        variance = ((counts * (variances + (means - mean).square())).sum(0) / count).to(x.dtype)
        mean = mean.to(x.dtype)
        ctx.eps = eps
        ctx.exchange = exchange
        ctx.save_for_backward(x, weight, mean, torch.rsqrt(variance + eps), count)
        ctx.mark_non_differentiable(mean, variance, count)
        result = nn.functional.batch_norm(x, mean, variance, weight, bias, eps=eps)
        return result, mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        gradient = gradients[0]
        x, weight, mean, scale, count = ctx.saved_tensors
        _, of_weight, of_bias = torch.ops.aten.native_batch_norm_backward(
            gradient, x, weight, None, None, mean, scale, True, ctx.eps, [False, True, True]
        )
        sums = torch.stack([of_weight, of_bias])
        ctx.exchange.begin()
        dist.all_reduce(sums)
        ctx.exchange.end()
        mean_of_weight, mean_of_bias = sums.div_(count.to(x.dtype))
        # The gradient of x is gradient * by_gradient + x * by_x + rest, computed in two passes.
        shape = (-1, *[1] * (x.dim() - 2))
        by_gradient = weight * scale
        by_x = -by_gradient * scale * mean_of_weight
        rest = -by_x * mean - by_gradient * mean_of_bias
        of_x = torch.addcmul(rest.view(shape), gradient, by_gradient.view(shape))
        return of_x.addcmul_(x, by_x.view(shape)), of_weight, of_bias, None, None
