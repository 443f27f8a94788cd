"""DistributedDataParallel: a process per replica."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from framework.errors import ConfigError
from framework.parallel.gather_state import UnshardedState
from framework.parallel.group import RankGroup

COMPRESS = ("none", "bf16")


@final
class DistributedParallel(UnshardedState, RankGroup):
    """One replica per rank. Gradients are averaged over ranks, in buckets, while backward still runs.

    ``sync_batch_norm``: batch statistics over all ranks, without which results depend on their number. ``bucket_mb``: gradients exchanged at once.
    ``static_graph``: every step uses the same parameters in the same order, which spares DDP its search for unused ones.
    ``compress``: ``bf16`` exchanges gradients as bfloat16, half the bytes, rounded. ``num_processes``, ``num_nodes``, ``endpoint``,
    ``max_restarts``: who starts ranks reads them.
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
        if compress not in COMPRESS:
            raise ConfigError(
                136,
                f"parallel.compress = {compress}",
                "not a way to send",
                f"choose {' or '.join(COMPRESS)}",
            )
        if (
            compress == "bf16" and device.type != "cuda"
        ):  # torch refuses it on gloo; under another name it hangs now and then
            raise ConfigError(136, "parallel.compress = bf16", "not among CPUs", "choose none")
        super().__init__("ddp", timeout_s, sync_batch_norm, device)
        self.bucket_mb, self.static_graph, self.compress = bucket_mb, static_graph, compress

    def wrap(self, model: nn.Module) -> nn.Module:
        model = self.trainable(model)
        replica = DistributedDataParallel(
            model,
            device_ids=[self.device] if self.device.type == "cuda" else None,
            bucket_cap_mb=self.bucket_mb,
            static_graph=self.static_graph,
            gradient_as_bucket_view=True,  # no second copy of the gradients
        )
        if self.compress == "bf16":
            replica.register_comm_hook(None, bf16_compress_hook)
        return replica

    def unwrap(self, model: nn.Module) -> nn.Module:
        return model.module if isinstance(model, DistributedDataParallel) else model

    def accumulate(self, model: nn.Module, last: bool) -> AbstractContextManager[Any]:
        return (
            model.no_sync()
            if not last and isinstance(model, DistributedDataParallel)
            else nullcontext()
        )
