"""The exchanges of FSDP2 on the CPU, where a rank waits in each of them, on the clock."""

from typing import Any, final

from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

from framework.parallel.exchange import Exchange


@final
class TimedGather(collectives.DefaultAllGather):
    """Gathers the weights of a module."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        with self._exchange:
            return super().__call__(*tensors, **options)


@final
class TimedReduce(collectives.DefaultReduceScatter):
    """Sums the gradients of a module, and keeps this rank's shard."""

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def __call__(self, *tensors: Any, **options: Any) -> Any:
        with self._exchange:
            return super().__call__(*tensors, **options)
