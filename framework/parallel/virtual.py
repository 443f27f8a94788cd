"""Virtual ranks: a batch is cut into so many parts whatever computes them, and everything is added in one order, so that 1, 2 or 4 processes
learn the same bits.

Source of the idea: Li et al., "EasyScale: accuracy-consistent elastic training for deep learning", SC 2023.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from framework.errors import ConfigError
from framework.parallel.gather_state import UnshardedState
from framework.parallel.group import RankGroup
from framework.parallel.virtual_counts import check_virtual_ranks
from framework.system.rng import seed_generators

_SEEDS = 1 << 62


@final
class PairwiseSum:
    """Adds tensors as a balanced tree over their numbers, so that sums of aligned runs of 2**n of them are sums inside the whole's. Keeps
    log2(count) + 1 tensors, which become its own. Also the more exact way: Higham, "The accuracy of floating point summation", 1993.
    """

    def __init__(self) -> None:
        self._parts: list[tuple[int, Tensor]] = []

    def add(self, value: Tensor) -> None:
        count = 1
        while self._parts and self._parts[-1][0] == count:
            value = self._parts.pop()[1].add_(value)
            count *= 2
        self._parts.append((count, value))

    def total(self) -> Tensor:
        """Of all that was added; then of nothing again."""
        _, value = self._parts.pop()
        while self._parts:
            value = self._parts.pop()[1].add_(value)
        return value


def pairwise_sum(values: Iterable[Tensor]) -> Tensor:
    """The sum, in ``PairwiseSum``'s order, in the memory of one of them."""
    found = PairwiseSum()
    for value in values:
        found.add(value)
    return found.total()


@final
class VirtualParallel(UnshardedState, RankGroup):
    """Each of ``num_processes`` computes its share of ``virtual_ranks`` parts of every batch, one after the other: a part sees its own records only in batch norm
    and draws its own random numbers, as a rank of ddp would. Gradients, and what batch norm keeps, are averaged over the parts, pairwise, after the last one.

    ``num_threads``: of a process, on CPU: kernels that share a sum among other threads add in another order. ``timeout_s``, and what who starts ranks reads
    (``num_processes``, ...), as in ddp. ConfigError C143 where the parts cannot be dealt out so that the order of adding stays.
    """

    def __init__(
        self,
        num_processes: int,
        virtual_ranks: int,
        num_threads: int,
        timeout_s: float,
        num_nodes: int = 1,
        endpoint: str | None = None,
        max_restarts: int = 0,
        *,
        device: torch.device,
    ) -> None:
        super().__init__("virtual", timeout_s, False, device)
        self.virtual_ranks = virtual_ranks
        check_virtual_ranks(virtual_ranks, self.world_size)
        if self.device.type == "cpu":
            torch.set_num_threads(num_threads)
        self._parts = range(
            self.rank * virtual_ranks // self.world_size,
            (self.rank + 1) * virtual_ranks // self.world_size,
        )
        self._step: _Step | None = None

    def wrap(self, model: nn.Module) -> nn.Module:
        if any(isinstance(one, nn.SyncBatchNorm) for one in model.modules()):
            raise ConfigError(
                146, "model", "SyncBatchNorm looks at other processes' records", "BatchNorm"
            )
        self.share_start(self.trainable(model))
        drawn = torch.get_rng_state().to(self.device)
        dist.broadcast(drawn, 0)
        torch.set_rng_state(drawn.cpu())
        return model

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Generator[None, None, None]:
        if self._step is None:
            self._step = _Step(model, self.virtual_ranks)
        step, self._step = self._step, None  # a pass that fails ends its step
        step.begin(self._parts[step.num_passes])
        yield
        step.end()
        if last:
            step.finish(self._exchanged)
        else:
            self._step = step

    def _exchanged(self, mine: Tensor) -> Tensor:
        """The ranks' sum: each adds up one piece, in the ranks' order, and all get the pieces: the bytes of a ring, in one order."""
        if self.world_size == 1:
            return mine
        size = -(-len(mine) // self.world_size)
        whole = nn.functional.pad(mine, (0, self.world_size * size - len(mine)))
        pieces = torch.empty_like(whole)
        dist.all_to_all_single(pieces, whole)
        dist.all_gather(
            list(whole.view(self.world_size, size)),
            pairwise_sum(pieces.view(self.world_size, size)),
        )
        return whole[: len(mine)]


@final
class _Step:
    """One optimizer step's parts on this rank."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self.num_passes, self._model, self._count, self._part = 0, model, count, 0
        self._parameters = {
            name: one for name, one in model.named_parameters() if one.requires_grad
        }
        self._start = {name: one.clone() for name, one in model.named_buffers()}
        self._versions = self._changes()
        self._sum = PairwiseSum()
        self._seed = int(
            torch.randint(_SEEDS, ())
        )  # the same on all ranks: they draw nothing else between steps
        self._generator = torch.get_rng_state()

    @torch.no_grad()
    def begin(self, part: int) -> None:
        """Each part meets the model as the step found it."""
        if self.num_passes:
            for name, own in self._model.named_buffers():
                own.copy_(self._start[name])
        self._part = part
        seed_generators((self._seed + part) % _SEEDS)

    @torch.no_grad()
    def end(self) -> None:
        """Take the part's gradients away, and what it made of the buffers. A parameter that took no part has zeros."""
        self._check()
        own = self._parameters.values()
        gradients = [
            torch.zeros_like(one) if one.grad is None else one.grad.to_dense() for one in own
        ]
        buffers = zip(_reals(self._model.buffers()), _reals(self._start.values()), strict=True)
        values = [self._value(own, start) for own, start in buffers]
        everything = torch.cat([one.flatten() for one in (*_reals(gradients), *values)])
        self._sum.add(
            everything.div_(self._count)
        )  # now: of large numbers, a sum would be infinite
        self.num_passes += 1
        for one in own:
            one.grad = None

    def _changes(self) -> list[int]:
        return [one._version for one in self._model.parameters()]  # noqa: SLF001  # torch's own count of changes in place

    def _check(self) -> None:
        """ConfigError C146: the next part, and the other ranks, would not meet the model as the step found it."""
        moved = [
            name
            for (name, _), now, then in zip(
                self._model.named_parameters(), self._changes(), self._versions, strict=True
            )
            if now != then
        ]
        here = {name: (one.shape, one.dtype) for name, one in self._model.named_buffers()}
        then = {name: (one.shape, one.dtype) for name, one in self._start.items()}
        told = [f"changes {name}" for name in moved]
        told += [
            f"adds, removes or reshapes {name}"
            for name in {**then, **here}
            if then.get(name) != here.get(name)
        ]
        if told:
            what = f"forward {told[0]}, which parts of a batch cannot share"
            raise ConfigError(
                146,
                "model",
                what,
                "parallel=none, or a forward that leaves them alone (an Embedding without max_norm)",
            )

    def _value(self, own: Tensor, start: Tensor) -> Tensor:
        """What is to be averaged, and whether there is anything: a constant, which may be infinite, stays what it is. Whole numbers cannot be
        averaged: the first part's change, to 24 bits, is everybody's.
        """
        changed = (
            (own != start).any().reshape(1).to(torch.float32)
        )  # on the device: nobody waits for it
        if own.is_floating_point():
            return torch.cat([changed, own.flatten()])
        change = (own.long() - start.long()).to(torch.float32).flatten()
        return torch.cat(
            [changed, change * self._count if self._part == 0 else torch.zeros_like(change)]
        )

    @torch.no_grad()
    def finish(self, exchanged: Callable[[Tensor], Tensor]) -> None:
        """Give the model the means over the parts."""
        gradients = [
            torch.empty_like(one) for one in self._parameters.values()
        ]  # laid out as the weights: fused optimizers want it
        buffers, starts = _reals(self._model.buffers()), _reals(self._start.values())
        sizes = [one.numel() for one in _reals(gradients)] + [1 + one.numel() for one in buffers]
        means = exchanged(self._sum.total()).split(sizes)
        for one, mean in zip(_reals(gradients), means, strict=False):
            one.copy_(mean.view(one.shape))
        for one, gradient in zip(self._parameters.values(), gradients, strict=True):
            one.grad = gradient
        for one, start, found in zip(buffers, starts, means[len(gradients) :], strict=True):
            mean, changed = found[1:].view(one.shape), found[0] != 0
            one.copy_(
                torch.where(
                    changed,
                    mean if one.is_floating_point() else start.long() + mean.round().long(),
                    start,
                )
            )
        seed_generators(
            (self._seed + self._count) % _SEEDS
        )  # none stands where this rank's last part left it
        torch.set_rng_state(self._generator)


def _reals(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The same memory, complex numbers as pairs of real ones."""
    return [torch.view_as_real(one) if one.is_complex() else one for one in tensors]
