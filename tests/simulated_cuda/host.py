"""Loaders, a producer and steps beside the simulated device, and checks against the CPU."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import MicroBatch
from framework.contracts.loader import LoaderContext
from framework.data import dali, hdf5
from framework.loader import plain, prefetch, stream
from framework.measure.clock import NoClock
from framework.train import cuda_graph
from tests.conftest import make_context
from tests.simulated_cuda import tensors, training
from tests.simulated_cuda.device import Device

BATCH_SIZE = 4
CPU = torch.device("cpu")


class AheadInTurns:
    """``Ahead`` without a thread: the device's seed decides how far the producer is ahead."""

    device: Device

    def __init__(self, produce: Iterator[Any], depth: int, occupancy: Any, threads: int) -> None:
        self._produce = produce
        self._depth = depth
        # a thread's work goes to the default stream, until the thread chooses another
        self._stream = self.device.default
        self._ready: deque[Any] = deque()

    @property
    def is_ready(self) -> bool:
        return bool(self._ready) and self.device.draw.random() < 0.8

    def __iter__(self) -> Iterator[Any]:
        ready = self._ready
        error: Exception | None = None
        ended = False
        while True:
            least = 0 if ready else 1
            wanted = self.device.draw.randint(least, self._depth)
            with self._thread():
                while not ended and len(ready) < wanted:
                    try:
                        ready.append(next(self._produce))
                    except StopIteration:
                        ended = True
                    except Exception as raised:  # noqa: BLE001  # raised in its place
                        error = raised
                        ended = True
            if not ready:
                if error is not None:
                    raise error
                return
            yield ready.popleft()

    def close(self) -> None:
        with self._thread():
            self._produce.close()

    @contextmanager
    def _thread(self) -> Iterator[None]:
        with self.device.on(self._stream):
            yield
            self._stream = self.device.current


class FakePipeline:
    """A pipeline of DALI in its own stream, whose next ``run`` writes over the one before."""

    def __init__(self, make_inputs: Callable[[], tuple[Any, ...]], largest: int) -> None:
        self._make_inputs = make_inputs
        self._largest = largest
        self._stream = torch.cuda.Stream(tensors.CUDA)
        self._memory: list[Tensor] = []

    def run(self) -> list[Any]:
        inputs = [torch.from_numpy(values) for values in self._make_inputs()]
        with torch.cuda.stream(self._stream):
            if not self._memory:
                shapes = [(self._largest, *values.shape[1:]) for values in inputs]
                self._memory = [
                    torch.empty(shape, dtype=values.dtype, device=tensors.CUDA)
                    for shape, values in zip(shapes, inputs, strict=True)
                ]
            outputs = [
                memory[: len(values)] for memory, values in zip(self._memory, inputs, strict=True)
            ]
            for output, values in zip(outputs, inputs, strict=True):
                output.copy_(values)
        self._stream.synchronize()
        return [SimpleNamespace(as_tensor=lambda own=output: own) for output in outputs]

    def reset(self) -> None: ...


def make_loader(kind: str, path: str, stage: str = "none") -> Any:
    """Return a real loader, its producer in this thread; ``stage`` is data=hdf5's or ``dali``."""
    context = make_context(batch_size=BATCH_SIZE, device=tensors.CUDA)
    if stage == "dali":
        source: Any = dali.dali_source(path, 2, context=context)
        source._build = lambda largest: FakePipeline(lambda: next(source._feed), largest)
    else:
        source = hdf5.hdf5_source(path, stage, context=context)
        assert (source.read._locked is not None) == (stage == "ram"), source.notes
    loader_context = LoaderContext(source, tensors.CUDA, augment, NoClock())
    if kind == "stream":
        return stream.StreamLoader(2, 2, context=loader_context)
    if kind == "prefetch":
        return prefetch.PrefetchLoader(2, True, context=loader_context)
    return plain.PlainLoader(True, context=loader_context)


def augment(batch: Batch, epoch: int) -> Batch:
    """Change every pixel, as a normalization does, in new memory."""
    return {**batch, "image": batch["image"].float().mul(2).add(epoch)}


def changed(loader: Any, change: Callable[[int, Batch], Batch]) -> Any:
    """Let a function of a batch's number change the batches of a loader's source."""
    batches = loader.context.source.batches

    def changed_batches(epoch: int, start: int = 0) -> Iterator[MicroBatch]:
        for number, micro in enumerate(batches(epoch, start)):
            yield micro._replace(batch=change(number, micro.batch))

    loader.context.source.batches = changed_batches
    return loader


def step(batch: Batch) -> Batch:
    """Use a batch as a training step does: with results that stay, and memory that goes."""
    image = batch["image"]
    scratch = torch.full_like(image, -7.0)
    sums = image.sum(dim=(1, 2, 3))
    del scratch
    torch.full_like(sums, -3.0)
    torch.full_like(batch["label"], -1)
    return {"sum": sums, "label": batch["label"] + 0, "index": batch["index"] + 0}


def take(loader: Any, epoch: int, count: int | None = None) -> list[Batch]:
    """Run the steps of an epoch, or ``count`` of them, and return their results on the host."""
    results: list[Batch] = []
    with closing(loader.epoch(epoch)) as batches:
        for micro in islice(batches, count):
            results.append(step(micro.batch))
            del micro
    return [{name: value.cpu() for name, value in result.items()} for result in results]


@cache
def expected(path: str, epoch: int) -> list[Batch]:
    """Return what ``take`` must return, computed without a device."""
    source = hdf5.hdf5_source(path, context=make_context(batch_size=BATCH_SIZE))
    with closing(source.batches(epoch)) as batches:
        results = [step(augment(micro.batch, epoch)) for micro in batches]
    source.close()
    return results


def is_expected(results: list[Batch], path: str, epoch: int, count: int | None = None) -> bool:
    others = expected(path, epoch)[:count]
    if len(results) != len(others):
        return False
    pairs = zip(results, others, strict=True)
    return all(torch.equal(result[name], other[name]) for result, other in pairs for name in other)


@cache
def trained_on_cpu(path: str) -> list[float]:
    source = hdf5.hdf5_source(path, context=make_context(batch_size=BATCH_SIZE))
    loader = plain.PlainLoader(False, context=LoaderContext(source, CPU, augment, NoClock()))
    numbers = training.train(loader, 3, CPU, graphed=False)
    loader.close()
    return numbers


def loads(path: str, _: Device, kind: str = "stream", stage: str = "none") -> bool:
    """Load two epochs, of which a loader's second finds the memory of the first."""
    with closing(make_loader(kind, path, stage)) as loader:
        return all(is_expected(take(loader, epoch), path, epoch) for epoch in (0, 1))


def loads_on(path: str, _: Device, kind: str = "stream", stage: str = "none") -> bool:
    """Load two epochs that are read without a stop between them."""
    with closing(make_loader(kind, path, stage)) as loader:
        loader.expect(0, 0, 2 * loader.num_steps)
        return all(is_expected(take(loader, epoch), path, epoch) for epoch in (0, 1))


def loads_nested(path: str, _: Device, kind: str = "stream", stage: str = "none") -> bool:
    """Load batches whose tensors lie in a dict, in a list."""

    def flat(batch: Batch, epoch: int) -> Batch:
        return augment(batch["parts"][0]["all"], epoch)

    def nested(_: int, batch: Batch) -> Batch:
        return {"parts": [{"all": batch}], "index": batch["index"]}

    with closing(make_loader(kind, path, stage)) as loader:
        loader.context = replace(loader.context, augment=flat)
        changed(loader, nested)
        return all(is_expected(take(loader, epoch), path, epoch) for epoch in (0, 1))


def loads_aside(path: str, device: Device, kind: str = "stream", stage: str = "none") -> bool:
    """Load while the consumer's current stream is not the default one."""
    with device.on(torch.cuda.Stream(tensors.CUDA)):
        return loads(path, device, kind, stage)


def leaves_early(path: str, _: Device, kind: str = "stream", stage: str = "none") -> bool:
    """Leave an epoch after some batches, and load the next."""
    with closing(make_loader(kind, path, stage)) as loader:
        early, whole = take(loader, 0, 2), take(loader, 1)
    return is_expected(early, path, 0, 2) and is_expected(whole, path, 1)


def trains(path: str, _: Device, kind: str = "stream", anew_at: int | None = None) -> bool:
    """Train three epochs of captured steps with short last batches, anew from ``anew_at``."""
    few_slots = mock.patch.object(cuda_graph, "NUM_SLOTS", 4)  # so that slots are used again
    with few_slots, closing(make_loader(kind, path)) as loader:
        numbers = training.train(loader, 3, tensors.CUDA, graphed=True, anew_at=anew_at)
    return numbers == trained_on_cpu(path)
