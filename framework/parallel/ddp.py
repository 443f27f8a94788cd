"""DistributedDataParallel: one process per replica."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from framework.errors import ConfigError
from framework.parallel.defaults import UnshardedState
from framework.parallel.group import RankGroup

COMPRESS = ("none", "bf16")


@final
class DistributedParallel(UnshardedState, RankGroup):
    """One replica per rank. Gradients are averaged over ranks in buckets while backward still runs.

    The launcher reads ``num_processes``, ``num_nodes``, ``endpoint`` and ``max_restarts``.

    Args:
        bucket_mb: Megabytes of gradients that are exchanged at once.
        static_graph: Whether every step uses the same parameters in the same order, which saves DDP
            the search for unused ones.
        compress: ``bf16`` exchanges gradients as bfloat16: half the bytes, but rounded.
        timeout_s, sync_batch_norm, device: As in RankGroup.
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
        super().__init__("ddp", timeout_s, sync_batch_norm, device)
        self.bucket_mb = bucket_mb
        self.static_graph = static_graph
        self.compress = compress

    def wrap(self, model: nn.Module) -> nn.Module:
        return self._replica(self.trainable(model))

    def rewrap(self, model: nn.Module) -> nn.Module:
        """Exchange the gradients of those parameters that need one now.

        A reducer would wait for a frozen parameter, and does not see one that has thawed.
        """
        if not isinstance(model, DistributedDataParallel):
            return model
        model._remove_autograd_hooks()  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        return self._replica(model.module)

    def _replica(self, model: nn.Module) -> nn.Module:
        device_ids = None
        if self.device.type == "cuda":
            device_ids = [self.device]
        replica = DistributedDataParallel(
            model,
            device_ids=device_ids,
            bucket_cap_mb=self.bucket_mb,
            static_graph=self.static_graph,
            gradient_as_bucket_view=True,  # no second copy of the gradients
        )
        if self.compress == "bf16":
            replica.register_comm_hook(None, bf16_compress_hook)
        return replica

    def unwrap(self, model: nn.Module) -> nn.Module:
        if isinstance(model, DistributedDataParallel):
            return model.module
        return model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        if not last and isinstance(model, DistributedDataParallel):
            return model.no_sync()
        return nullcontext()
