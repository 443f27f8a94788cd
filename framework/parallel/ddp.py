"""DistributedDataParallel: one process per replica."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from framework.contracts.batch import Batch
from framework.contracts.parallel import Precision
from framework.contracts.training import Objective
from framework.errors import ConfigError, listed
from framework.parallel.group import RankGroup
from framework.system.rng import kept_generators

COMPRESS = ("none", "bf16")
_NUMBERS = re.compile(r"did not receive grad for rank \d+:([ \d]*)")
_engine: Any = torch.autograd.Variable._execution_engine  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001


@final
class DistributedParallel(RankGroup):
    """One replica per rank. Gradients are averaged over ranks in buckets while backward still runs.

    The launcher reads ``num_processes``, ``num_nodes``, ``endpoint`` and ``max_restarts``.
    """

    def __init__(
        self,
        num_processes: int,
        sync_batch_norm: bool,
        timeout_s: float,
        num_nodes: int = 1,
        endpoint: str | None = None,
        max_restarts: int = 0,
        bucket_mb: float = 25,
        static_graph: bool = False,
        compress: str = "none",
        find_unused: bool = False,
        *,
        device: torch.device,
    ) -> None:
        where = f"parallel.compress = {compress}"
        if compress not in COMPRESS:
            fix = f"choose {' or '.join(COMPRESS)}"
            raise ConfigError(136, where, "is not a way to send gradients", fix)
        # torch refuses its hook on gloo, and a copy of the hook sometimes hangs there.
        if compress == "bf16" and device.type != "cuda":
            raise ConfigError(136, where, "does not work among CPUs", "choose none")
        if find_unused and static_graph:
            what = "excludes static_graph, by which every step uses the same parameters"
            raise ConfigError(136, "parallel.find_unused = True", what, "leave one of them out")
        super().__init__("ddp", timeout_s, sync_batch_norm, device)
        self._hooks: list[RemovableHandle] = []
        self.syncs = True  # False: no gradients are exchanged, to measure what that costs
        self.bucket_mb = bucket_mb
        self.static_graph = static_graph
        self.compress = compress
        self.find_unused = find_unused

    def wrap(self, model: nn.Module) -> nn.Module:
        return self._replica(self.trainable(model))

    def share(self, model: nn.Module) -> nn.Module:
        """Return the model that begins alike on all ranks. C136 for options of ``wrap`` alone."""
        given = {"static_graph": self.static_graph, "find_unused": self.find_unused}
        given["compress"] = self.compress != "none"
        if unused := [key for key, value in given.items() if value]:
            what = "is for gradients that are sent while backward runs, not after a phase"
            raise ConfigError(136, f"parallel.{unused[0]}", what, "leave it out")
        model = self.trainable(model)
        self.share_start(model)
        return model

    def rewrap(self, model: nn.Module) -> nn.Module:
        """Exchange the gradients of those parameters that need one now.

        A reducer would wait for a frozen parameter, and does not see one that has thawed.
        """
        if not isinstance(model, DistributedDataParallel):
            return model
        model._remove_autograd_hooks()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        return self._replica(model.module)

    def _replica(self, model: nn.Module) -> nn.Module:
        replica = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.bucket_mb,
            static_graph=self.static_graph,
            find_unused_parameters=self.find_unused,
            gradient_as_bucket_view=True,  # no second copy of the gradients
        )
        if self.compress == "bf16":
            replica.register_comm_hook(None, bf16_compress_hook)
        # DDP waits for the others in a callback at the end of backward: one that is queued earlier
        # comes first. DDP also waits before the forward pass, for the buffers of rank 0.
        for hook in self._hooks:
            hook.remove()
        exchange = self.exchange

        def queue(gradient: Tensor) -> None:
            if replica.require_backward_grad_sync:
                _engine.queue_callback(exchange.begin)

        def before_buffers(module: nn.Module, inputs: Any) -> None:
            if replica.training:
                exchange.begin()

        trained = [own for own in replica.parameters() if own.requires_grad]
        self._hooks = [own.register_hook(queue) for own in trained[:1]]
        if next(replica.buffers(), None) is not None:
            self._hooks += [
                replica.register_forward_pre_hook(before_buffers),
                replica.module.register_forward_pre_hook(lambda *_: exchange.end()),
            ]
        return replica

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    @contextmanager
    def accumulate(self, model: nn.Module, last: bool) -> Generator[None]:
        if isinstance(model, DistributedDataParallel) and not (last and self.syncs):
            with model.no_sync():
                yield
            return
        with explained(model):
            try:
                yield
            finally:
                self.exchange.end()


@contextmanager
def explained(model: nn.Module) -> Generator[None]:
    """Turn errors of DDP about parameters without gradients into ConfigError C146."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(model, DistributedDataParallel):
            raise
        text = str(error)
        if text.startswith("Expected to have finished reduction"):  # in the next forward pass
            numbers = _NUMBERS.search(text)
            # those whose gradients are exchanged, in the order of DDP's numbers
            trained = (own for own in model.module.named_parameters() if own[1].requires_grad)
            names = [name for name, _ in trained]
            missing = [names[int(number)] for number in numbers[1].split()] if numbers else []
            raise _without_gradient(missing) from error
        if text.startswith("Expected to mark a variable ready") and model.find_unused_parameters:
            what = "parallel.find_unused=true takes used parameters for unused ones"
            fix = "let forward return tensors, or tuples, lists, dicts or dataclasses of them"
            raise ConfigError(146, "model", what, fix) from error
        raise


def warm_up_ddp(
    model: nn.Module, objective: Objective, precision: Precision, batch: Batch, device: torch.device
) -> None:
    """Run one forward and backward pass that changes neither the model nor the random generators.

    After it, DDP has rearranged its buckets, so that a resumed run adds in the same order from its
    first step on. All ranks call this together, with the wrapped model and a batch as in a step.

    ConfigError C146 if a gradient is missing, which torch says only in the next forward pass.
    """
    buffers = [buffer.clone() for buffer in model.buffers()]
    with kept_generators(device), explained(model):
        with precision.autocast():
            loss = objective(model, batch).loss
        loss.backward()
    if isinstance(model, DistributedDataParallel):
        trained = (own for own in model.module.named_parameters() if own[1].requires_grad)
        missing = [name for name, own in trained if own.grad is None]
        if missing and not (model.static_graph or model.find_unused_parameters):
            raise _without_gradient(missing)
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)


def _without_gradient(names: Sequence[str]) -> ConfigError:
    unused = f"{listed(names) or 'some parameters'}, which the loss does not use"
    fix = (
        "set parallel.static_graph=true if no step uses them, parallel.find_unused=true if some "
        "steps do, or name them in freeze"
    )
    return ConfigError(146, "model", f"parallel=ddp waits for the gradient of {unused}", fix)
