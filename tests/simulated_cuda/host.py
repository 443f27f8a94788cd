"""What runs on the host beside the simulated device: loaders, a producer, and a step."""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import MicroBatch
from framework.contracts.loader import LoaderContext
from framework.data.dali import dali_source
from framework.data.hdf5 import hdf5_source
from framework.loader.plain import PlainLoader
from framework.loader.prefetch import PrefetchLoader
from framework.loader.stream import StreamLoader
from framework.measure.clock import NoClock
from tests.conftest import make_context
from tests.simulated_cuda.device import Device
from tests.simulated_cuda.tensors import CUDA

BATCH_SIZE = 4


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


class FakeOutput:
    """An output of DALI on the device."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def as_tensor(self) -> Tensor:
        return self._tensor


class FakePipeline:
    """A pipeline of DALI that reuses the memory of an output as early as it may.

    It works in a stream of its own. ``run`` waits for its batch, and the next ``run`` lets it write
    over the one before.
    """

    def __init__(self, make_inputs: Callable[[], tuple[Any, ...]], largest: int) -> None:
        self._make_inputs = make_inputs
        self._largest = largest
        self._stream = torch.cuda.Stream(CUDA)
        self._memory: list[Tensor] = []

    def run(self) -> list[FakeOutput]:
        inputs = [torch.from_numpy(values) for values in self._make_inputs()]
        with torch.cuda.stream(self._stream):
            if not self._memory:
                shapes = [(self._largest, *values.shape[1:]) for values in inputs]
                self._memory = [
                    torch.empty(shape, dtype=values.dtype, device=CUDA)
                    for shape, values in zip(shapes, inputs, strict=True)
                ]
            outputs = [
                memory[: len(values)] for memory, values in zip(self._memory, inputs, strict=True)
            ]
            for output, values in zip(outputs, inputs, strict=True):
                output.copy_(values)
        self._stream.synchronize()
        return [FakeOutput(output) for output in outputs]

    def reset(self) -> None: ...


def make_source(path: str, stage: str) -> Any:
    """Return a real source on the device. ``stage`` is that of data=hdf5, or ``dali``."""
    context = make_context(batch_size=BATCH_SIZE, device=CUDA)
    if stage != "dali":
        source = hdf5_source(path, stage, context=context)
        assert (source.read._locked is not None) == (stage == "ram"), source.notes
        return source
    source = dali_source(path, 2, context=context)
    source._build = lambda largest: FakePipeline(lambda: next(source._feed), largest)
    return source


def make_loader(kind: str, path: str, stage: str = "none") -> Any:
    """Return a real loader over a real store, with the producer in this thread."""
    source = make_source(path, stage)
    loader_context = LoaderContext(source, CUDA, augment, NoClock())
    if kind == "stream":
        return StreamLoader(2, 2, context=loader_context)
    if kind == "prefetch":
        return PrefetchLoader(2, True, context=loader_context)
    return PlainLoader(True, context=loader_context)


def changed(loader: Any, change: Callable[[int, Batch], Batch]) -> Any:
    """Let a function of a batch's number change the batches of a loader's source."""
    batches = loader.context.source.batches

    def changed_batches(epoch: int, start: int = 0) -> Iterator[MicroBatch]:
        for number, micro in enumerate(batches(epoch, start)):
            yield micro._replace(batch=change(number, micro.batch))

    loader.context.source.batches = changed_batches
    return loader


def nested(loader: Any) -> Any:
    """Let a loader's source nest its fields, and its augmentation take them out again."""

    def flat(batch: Batch, epoch: int) -> Batch:
        return augment(batch["parts"][0]["all"], epoch)

    loader.context = replace(loader.context, augment=flat)
    return changed(loader, lambda _, batch: {"parts": [{"all": batch}], "index": batch["index"]})


def augment(batch: Batch, epoch: int) -> Batch:
    """Change every pixel, as a normalization does, in new memory."""
    return {**batch, "image": batch["image"].float().mul(2).add(epoch)}


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


def expected(path: str, epoch: int) -> list[Batch]:
    """Return what ``take`` must return, computed without a device."""
    source = hdf5_source(path, context=make_context(batch_size=BATCH_SIZE))
    with closing(source.batches(epoch)) as batches:
        results = [step(augment(micro.batch, epoch)) for micro in batches]
    source.close()
    return results
