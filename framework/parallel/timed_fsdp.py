"""The exchanges of FSDP2 on the CPU, where a rank waits in each of them, on the clock."""

from typing import Any, final

from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

from framework.parallel.exchange import Exchange


class _Timed:
    """What both exchanges share: they take place inside an ``Exchange``."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        with self._exchange:
            return super().__call__(*tensors, **options)  # pyright: ignore[reportAttributeAccessIssue]  # of the other base


@final
class TimedGather(_Timed, collectives.DefaultAllGather):
    """Gathers the weights of a module."""


@final
class TimedReduce(_Timed, collectives.DefaultReduceScatter):
    """Sums the gradients of a module, and keeps this rank's shard."""
