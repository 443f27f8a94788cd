"""Virtual ranks: any number of processes learns the same bits (docs/design/0009-virtual-ranks.md).

Source: Li et al., "EasyScale: accuracy-consistent elastic training for deep learning", SC 2023.
"""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from framework.errors import ConfigError
from framework.parallel import group, processes
from framework.system.rng import seed_generators

_SEEDS = 1 << 62


@final
class PairwiseSum:
    """Adds tensors as a balanced binary tree, so that aligned runs of 2**n of them are subtrees.

    It keeps log2(count) + 1 tensors, and adds in their memory. This order is also more exact.
    Source: Higham, "The accuracy of floating point summation", 1993.
    """

    def __init__(self, values: Iterable[Tensor] = ()) -> None:
        self._parts: list[tuple[int, Tensor]] = []
        for value in values:
            self.add(value)

    def add(self, value: Tensor) -> None:
        count = 1
        while self._parts and self._parts[-1][0] == count:
            value = self._parts.pop()[1].add_(value)
            count *= 2
        self._parts.append((count, value))

    def total(self) -> Tensor:
        """Return the sum, and start again from nothing."""
        _, value = self._parts.pop()
        while self._parts:
            value = self._parts.pop()[1].add_(value)
        return value


@final
class VirtualParallel(group.RankGroup):
    """Each process computes its share of the virtual ranks, which are the parts of every batch.

    Like a rank of ddp, a part sees only its own records in batch norm, and draws its own random
    numbers. Gradients and batch norm's buffers are averaged over the parts after the last one.
    Another number of ``num_threads`` on the CPU adds in another order.
    """

    objective_refusal = "parallel=virtual adds up only the gradients of the model in a fixed order"
    phase_refusal = "parallel=virtual adds up the gradients of one backward pass"

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
        processes.check_virtual_ranks(virtual_ranks, self.world_size)
        if self.device.type == "cpu":
            torch.set_num_threads(num_threads)
        share = virtual_ranks // self.world_size
        self._parts = range(self.rank * share, (self.rank + 1) * share)
        self._step: _Step | None = None

    def wrap(self, model: nn.Module) -> nn.Module:
        if any(isinstance(module, nn.SyncBatchNorm) for module in model.modules()):
            what = "SyncBatchNorm looks at other processes' records"
            raise ConfigError(146, "model", what, "use BatchNorm")
        self.share_start(self.trainable(model))
        generator = torch.get_rng_state().to(self.device)
        dist.broadcast(generator, 0)
        torch.set_rng_state(generator.cpu())
        return model

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Generator[None]:
        step = self._step or _Step(model, self.virtual_ranks)
        self._step = None  # a pass that fails ends its step
        step.begin(self._parts[step.num_passes])
        yield
        step.end()
        if last:
            step.finish(self._exchanged)
        else:
            self._step = step

    def _exchanged(self, own: Tensor) -> Tensor:
        if self.world_size == 1:
            return own
        # Each rank adds a piece in rank order, and all get the pieces: as many bytes as in a ring.
        size = -(-len(own) // self.world_size)
        padded = nn.functional.pad(own, (0, self.world_size * size - len(own)))
        pieces = torch.empty_like(padded)
        with self.exchange:
            dist.all_to_all_single(pieces, padded)
        summed = PairwiseSum(pieces.view(self.world_size, size)).total()
        with self.exchange:
            dist.all_gather(list(padded.view(self.world_size, size)), summed)
        return padded[: len(own)]


@final
class _Step:
    """The parts of one optimizer step on this rank."""

    def __init__(self, model: nn.Module, count: int) -> None:
        self.num_passes = 0
        self._model = model
        self._count = count
        self._part = 0
        self._parameters = [own for own in model.parameters() if own.requires_grad]
        self._start = {name: buffer.clone() for name, buffer in model.named_buffers()}
        # torch's own count of changes in place
        self._versions = [own._version for own in model.parameters()]  # noqa: SLF001
        self._used = [False] * len(self._parameters)  # by a part of this rank
        self._sum = PairwiseSum()
        # The same seed on all ranks, which draw nothing else between steps.
        self._seed = int(torch.randint(_SEEDS, ()))
        self._generator = torch.get_rng_state()

    @torch.no_grad()
    def begin(self, part: int) -> None:
        """Give the part the buffers from the start of the step, and its own seed."""
        if self.num_passes:
            for name, buffer in self._model.named_buffers():
                buffer.copy_(self._start[name])
        self._part = part
        seed_generators((self._seed + part) % _SEEDS)

    @torch.no_grad()
    def end(self) -> None:
        """Add to the sum: the part's gradients, which of them there are, and its buffers.

        A parameter without a gradient adds zeros.
        """
        self._check()
        flags = torch.ones(len(self._parameters), device=self._parameters[0].device)
        gradients: list[Tensor] = []
        for number, parameter in enumerate(self._parameters):
            if parameter.grad is None:
                flags[number] = 0
                gradients.append(torch.zeros_like(parameter))
            else:
                self._used[number] = True
                gradients.append(parameter.grad.to_dense())
                parameter.grad = None
        values: list[Tensor] = []
        starts = _reals(self._start.values())
        for buffer, start in zip(_reals(self._model.buffers()), starts, strict=True):
            # An unchanged buffer stays as it is, since it may hold infinite constants.
            values.append((buffer != start).any().to(torch.float32))  # without synchronizing
            if buffer.is_floating_point():
                values.append(buffer)
            else:
                # Integers cannot be averaged: all take the first part's change, exact up to 2**24.
                weight = 0 if self._part > 0 else self._count
                values.append((buffer.long() - start.long()).to(torch.float32) * weight)
        reals = _reals(gradients)
        tensors = (*reals, flags.to(reals[0].dtype), *values)
        # Divide before the sum, which could overflow.
        self._sum.add(torch.cat([own.flatten() for own in tensors]).div_(self._count))
        self.num_passes += 1

    def _check(self) -> None:
        """Check that the next part, and the other ranks, find the model as the step found it.

        ConfigError C146 if the forward pass changed a weight or the set of buffers.
        """
        weights = zip(self._model.named_parameters(), self._versions, strict=True)
        faults = [
            f"changes {name}"
            for (name, own), version in weights
            if own._version != version  # noqa: SLF001
        ]
        now = {name: (own.shape, own.dtype) for name, own in self._model.named_buffers()}
        before = {name: (own.shape, own.dtype) for name, own in self._start.items()}
        differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        faults += [f"adds, removes or reshapes {name}" for name in differing]
        if faults:
            what = f"forward {faults[0]}, which parts of a batch cannot share"
            fix = "set parallel=none, or leave them alone (as an Embedding without max_norm does)"
            raise ConfigError(146, "model", what, fix)

    @torch.no_grad()
    def finish(self, exchanged: Callable[[Tensor], Tensor]) -> None:
        """Give the model the means over the parts. Without any part's gradient, it is None."""
        # Fused optimizers want gradients with the memory layout of the weights.
        gradients = [torch.empty_like(parameter) for parameter in self._parameters]
        reals = _reals(gradients)
        buffers = _reals(self._model.buffers())
        starts = _reals(self._start.values())
        sizes = [own.numel() for own in reals]
        sizes += [len(reals), *(1 + own.numel() for own in buffers)]
        means = exchanged(self._sum.total()).split(sizes)
        for gradient, mean in zip(reals, means, strict=False):
            gradient.copy_(mean.view(gradient.shape))
        used = self._used
        if not all(used):  # otherwise the host need not wait for a GPU
            used = means[len(reals)].tolist()
        for parameter, gradient, is_used in zip(self._parameters, gradients, used, strict=True):
            parameter.grad = gradient if is_used else None
        for buffer, start, values in zip(buffers, starts, means[len(reals) + 1 :], strict=True):
            mean = values[1:].view(buffer.shape)
            if not buffer.is_floating_point():
                mean = start.long() + mean.round().long()
            buffer.copy_(torch.where(values[0] != 0, mean, start))
        # The ranks' last parts differ, so all generators continue from a common state.
        seed_generators((self._seed + self._count) % _SEEDS)
        torch.set_rng_state(self._generator)


def _reals(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the same memory with complex numbers as pairs of real ones."""
    return [torch.view_as_real(own) if own.is_complex() else own for own in tensors]
