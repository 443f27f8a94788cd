"""Works for the simulated device: real loaders and captured steps, each with its check.

Every work takes the path of a store and returns whether its numbers are those of the CPU.
"""

from functools import cache
from unittest import mock

import torch

from framework.contracts.loader import LoaderContext
from framework.data.hdf5 import hdf5_source
from framework.loader.plain import PlainLoader
from framework.measure.clock import NoClock
from framework.train import step_slots
from tests.conftest import make_context
from tests.simulated_cuda.device import Device
from tests.simulated_cuda.host import BATCH_SIZE, augment, expected, make_loader, nested, take
from tests.simulated_cuda.tensors import CUDA
from tests.simulated_cuda.training import train

CPU = torch.device("cpu")
EPOCHS = (0, 1)


def _is_same(results: list, others: list) -> bool:
    if len(results) != len(others):
        return False
    pairs = zip(results, others, strict=True)
    return all(torch.equal(result[name], other[name]) for result, other in pairs for name in other)


@cache
def _expected(path: str, epoch: int) -> list:
    return expected(path, epoch)


@cache
def _trained(path: str) -> list[float]:
    context = make_context(batch_size=BATCH_SIZE)
    source = hdf5_source(path, context=context)
    loader = PlainLoader(False, context=LoaderContext(source, CPU, augment, NoClock()))
    numbers = train(loader, 3, CPU, graphed=False)
    loader.close()
    return numbers


def loads(path: str, kind: str, stage: str = "none") -> bool:
    """Load two epochs, of which a loader's second finds the memory of the first."""
    loader = make_loader(kind, path, stage)
    results = [_is_same(take(loader, epoch), _expected(path, epoch)) for epoch in EPOCHS]
    loader.close()
    return all(results)


def loads_nested(path: str, kind: str, stage: str = "none") -> bool:
    """Load batches whose tensors lie in a dict, in a list."""
    loader = nested(make_loader(kind, path, stage))
    results = [_is_same(take(loader, epoch), _expected(path, epoch)) for epoch in EPOCHS]
    loader.close()
    return all(results)


def loads_on_a_side_stream(path: str, kind: str, stage: str, device: Device) -> bool:
    """Load while the consumer's current stream is not the default one."""
    with device.on(torch.cuda.Stream(CUDA)):
        return loads(path, kind, stage)


def leaves_early(path: str, kind: str, stage: str = "none") -> bool:
    """Leave an epoch after some batches, and load the next."""
    loader = make_loader(kind, path, stage)
    early = take(loader, 0, 2)
    whole = take(loader, 1)
    loader.close()
    return _is_same(early, _expected(path, 0)[:2]) and _is_same(whole, _expected(path, 1))


def trains(path: str, kind: str, anew_at: int | None = None) -> bool:
    """Train three epochs with captured steps; the last batch of each is short.

    At step ``anew_at`` steps are captured anew.
    """
    loader = make_loader(kind, path)
    with mock.patch.object(step_slots, "NUM_SLOTS", 4):  # so that slots are used again
        numbers = train(loader, 3, CUDA, graphed=True, anew_at=anew_at)
    loader.close()
    return numbers == _trained(path)
