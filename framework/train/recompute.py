"""Compute activations again in the backward pass instead of keeping them, and measure the cost.

A chosen module gets a class of its own, whose forward pass runs in torch's checkpoint. Names,
weights, hooks and replicas of the module stay as they are, which a wrapper would change.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from framework.errors import ConfigError
from framework.train.parameter_groups import matching, what_model_has
from framework.train.weights import local

REPEATS = 3  # timed passes of each kind


class Recomputed(nn.Module):
    """A module whose activations are not kept in training. It is the first base of its class.

    The pass that is repeated draws the same random numbers, and finds the buffers as they were:
    running statistics count a batch once.
    """

    recomputes = True

    def forward(self, *inputs: Any, **named: Any) -> Any:
        forward: Any = super().forward
        if not (self.recomputes and self.training and torch.is_grad_enabled()):
            return forward(*inputs, **named)
        count, names = len(inputs), list(named)

        def run(*values: Any) -> Any:  # by place, since the checkpoint looks at no others
            return forward(*values[:count], **dict(zip(names, values[count:], strict=True)))

        options: dict[str, Any] = {"use_reentrant": False}
        if not torch.compiler.is_compiling():  # compiled code changes buffers once by itself
            before = BuffersBefore(self)
            options["context_fn"] = lambda: (nullcontext(), before)
        return checkpoint(run, *inputs, *named.values(), **options)


@final
class BuffersBefore:
    """A context in which a module has copies of the buffers that it had when this was made."""

    def __init__(self, module: nn.Module) -> None:
        self._kept = [
            (owner, name, buffer.clone())
            for owner in module.modules()
            for name, buffer in owner.named_buffers(recurse=False)
        ]
        self._present: list[Tensor] = []

    def __enter__(self) -> None:
        self._present = [getattr(owner, name) for owner, name, _ in self._kept]
        for owner, name, buffer in self._kept:
            setattr(owner, name, buffer.clone())

    def __exit__(self, *exception: object) -> None:
        for (owner, name, _), buffer in zip(self._kept, self._present, strict=True):
            setattr(owner, name, buffer)


def recompute(model: nn.Module, patterns: Sequence[str]) -> None:
    """Let the outermost modules whose names match compute their activations again.

    A list of modules, which has no forward pass, stands for its modules. ConfigError C388 for a
    pattern without modules.
    """
    modules = {name: module for name, module in model.named_modules() if name}
    for pattern in patterns:
        if not matching(pattern, modules):
            what = f"matches no module of the model; {what_model_has(pattern, modules)}"
            raise ConfigError(388, f"recompute = {pattern}", what, "give names of modules")
    chosen: list[str] = []
    for name in matching(patterns, modules):
        module = modules[name]
        computes = type(module).forward is not nn.Module.forward
        if computes and not any(name.startswith(f"{outer}.") for outer in chosen):
            chosen.append(name)
            kind: Any = type(module)
            own = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
            module.__class__ = type(kind.__name__, (Recomputed, kind), own)


def recompute_cost(model: nn.Module, forward: Callable[[], Tensor]) -> dict[str, float]:
    """Measure a pass with and without recomputing. Gradients add up, and buffers change.

    Return ``kept_bytes``, which the pass keeps for backward, ``pass_s``, the median seconds of
    forward and backward, and ``kept_bytes_without`` and ``pass_s_without``. ``forward`` returns the
    loss.
    """
    own = [module for module in model.modules() if isinstance(module, Recomputed)]
    device = next(model.parameters()).device
    cost: dict[str, float] = {}
    times_s: dict[str, list[float]] = {"": [], "_without": []}
    for repeat in range(REPEATS):
        for suffix, passes_s in times_s.items():
            for module in own:
                module.recomputes = not suffix
            if not repeat:  # a pass that is not timed
                cost[f"kept_bytes{suffix}"] = kept_bytes(model, forward)
            start = time.perf_counter()
            forward().backward()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            passes_s.append(time.perf_counter() - start)
    for module in own:
        module.recomputes = True
    return cost | {f"pass_s{name}": statistics.median(own_s) for name, own_s in times_s.items()}


def kept_bytes(model: nn.Module, forward: Callable[[], Tensor]) -> int:
    """Return the bytes of the tensors that a pass keeps for backward, which then runs.

    Each memory counts once, and that of the model's weights does not.
    """
    sizes: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        # anew each time: the weights of sharded models come and go
        weights = {local(own).untyped_storage().data_ptr() for own in model.parameters()}
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in weights:
            sizes[memory.data_ptr()] = memory.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = forward()
    loss.backward()
    return sum(sizes.values())
