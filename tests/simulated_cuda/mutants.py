"""Guards of the CUDA code, each taken away, and the work that must go wrong without it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple
from unittest import mock

import torch

from framework.contracts.batch import tensors
from framework.data.dali import DALISource
from framework.loader import queue, stream
from framework.loader.stream import StreamLoader
from framework.system import page_locked
from framework.train.cuda_graph import CudaRecorder
from framework.train.step_slots import StepSlots
from tests.simulated_cuda import works
from tests.simulated_cuda.device import Device, Stream
from tests.simulated_cuda.patch import simulated
from tests.simulated_cuda.tensors import DeviceTensor


class Mutant(NamedTuple):
    """A guard that is taken away.

    Attributes:
        guard: Its name, for the table.
        work: What needs it: a function of a store's path and the device.
        broken: Takes it away inside its context.
    """

    guard: str
    work: Callable[[str, Device], bool]
    broken: Callable[[], AbstractContextManager[Any]]


def failing(
    work: Callable[[str, Device], bool],
    path: str,
    seeds: range,
    broken: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[int]:
    """Yield the seeds whose schedule makes the work go wrong."""
    for seed in seeds:
        with simulated(seed) as device, broken():
            try:
                is_right = work(path, device)
            except Exception:  # noqa: BLE001  # a damaged batch may raise anything
                is_right = False
        if not is_right:
            yield seed


def _patched(where: Any, name: str, put: Any) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: mock.patch.object(where, name, put)


def _nothing(*_: Any) -> None:
    pass


@contextmanager
def _event_before_the_copy() -> Iterator[None]:
    start = StreamLoader._start

    def too_early(loader: StreamLoader, micro: Any) -> Any:
        event = torch.cuda.Event()
        event.record(loader.stream)
        return start(loader, micro)._replace(done=event)

    with mock.patch.object(StreamLoader, "_start", too_early):
        yield


def _thread_on_the_default_stream() -> AbstractContextManager[Any]:
    use = page_locked.use
    return mock.patch.object(queue, "use", lambda device, pinned, stream=None: use(device, pinned))


def _aside(wait_before: bool, wait_after: bool) -> Callable[[], AbstractContextManager[Any]]:
    """Do warm-up steps aside with one of the two waits."""

    def aside(recorder: CudaRecorder, work: Callable[[], Any]) -> Any:
        current = torch.cuda.current_stream()
        if wait_before:
            recorder._stream.wait_stream(current)
        with torch.cuda.stream(recorder._stream):
            result = work()
        if wait_after:
            current.wait_stream(recorder._stream)
        return result

    return _patched(CudaRecorder, "aside", aside)


def _block_for_all_batches() -> AbstractContextManager[Any]:
    end = page_locked.Block.end

    def kept(block: page_locked.Block) -> Any:
        memory = block._memory
        used = end(block)
        block._memory = memory
        return used

    return mock.patch.object(page_locked.Block, "end", kept)


def _loads(kind: str, stage: str = "none") -> Callable[[str, Device], bool]:
    return lambda path, _: works.loads(path, kind, stage)


def _loads_aside(kind: str, stage: str) -> Callable[[str, Device], bool]:
    return lambda path, device: works.loads_on_a_side_stream(path, kind, stage, device)


@contextmanager
def _counter_that_stands_still() -> Iterator[None]:
    end = StepSlots.end

    def without_counting(slots: StepSlots, outcome: Any) -> None:
        end(slots, outcome)
        slots._place.sub_(1)

    with mock.patch.object(StepSlots, "end", without_counting):
        yield


def _trains(path: str, _: Device) -> bool:
    return works.trains(path, "stream")


def _cloned_in_the_consumers_stream() -> AbstractContextManager[Any]:
    """Clone DALI's outputs behind the steps that are queued, as before."""

    def copies(_: DALISource, outputs: Any) -> list[torch.Tensor]:
        return [torch.from_dlpack(output.as_tensor()).clone() for output in outputs]

    return mock.patch.object(DALISource, "_copies", copies)


@contextmanager
def _dali_does_not_wait() -> Iterator[None]:
    """Let DALI go on before the copies of its outputs are done."""
    copies = DALISource._copies

    def at_once(source: DALISource, outputs: Any) -> list[torch.Tensor]:
        with mock.patch.object(Stream, "synchronize", _nothing):
            tensors = copies(source, outputs)
        torch.cuda.current_stream().wait_stream(source._stream)
        return tensors

    with mock.patch.object(DALISource, "_copies", at_once):
        yield


MUTANTS = [
    Mutant(
        "stream: the step waits for the copy's event",
        _loads("stream"),
        _patched(Stream, "wait_event", _nothing),
    ),
    Mutant(
        "stream: copied tensors are recorded on the step's stream",
        _loads("stream"),
        _patched(DeviceTensor, "record_stream", _nothing),
    ),
    Mutant(
        "stream: nested tensors are recorded, too",
        lambda path, _: works.loads_nested(path, "stream"),
        _patched(stream, "leaves", lambda batch: tensors(batch).values()),
    ),
    Mutant("stream: the event follows the copy", _loads("stream"), _event_before_the_copy),
    Mutant(
        "stream: a batch has page-locked memory of its own",
        _loads("stream"),
        _block_for_all_batches,
    ),
    Mutant(
        "stream: the thread gathers in the step's stream (data.stage=device)",
        _loads_aside("stream", "device"),
        _thread_on_the_default_stream,
    ),
    Mutant(
        "prefetch: the thread gathers in the step's stream (data.stage=device)",
        _loads_aside("prefetch", "device"),
        _thread_on_the_default_stream,
    ),
    Mutant(
        "plain: the step waits for pieces that are copied in another stream (data.stage=ram)",
        _loads("plain", "ram"),
        _patched(Stream, "wait_stream", _nothing),
    ),
    Mutant(
        "plain: these are recorded on the step's stream (data.stage=ram)",
        _loads("plain", "ram"),
        _patched(DeviceTensor, "record_stream", _nothing),
    ),
    Mutant(
        "stream: the step waits for pieces (data.stage=ram)",
        _loads("stream", "ram"),
        _patched(Stream, "wait_event", _nothing),
    ),
    Mutant("graph: a warm-up step waits for its batch", _trains, _aside(False, True)),
    Mutant("graph: the next step waits for a warm-up step", _trains, _aside(True, False)),
    Mutant(
        "graph: outcomes are kept before their slots are used again",
        _trains,
        _patched(StepSlots, "_keep_given", _nothing),
    ),
    Mutant(
        "graph: each step leaves its outcome in a slot of its own",
        _trains,
        _counter_that_stands_still,
    ),
    Mutant(
        "graph: the batch is copied to where the graph reads it",
        _trains,
        _patched(torch, "_foreach_copy_", _nothing),
    ),
    Mutant(
        "graph: the table has the rates of the next steps",
        _trains,
        _patched(works.train.__globals__["Update"], "rates_of", lambda *_: [0.1]),
    ),
    Mutant(
        "dali: outputs are copied in a stream of their own",
        _loads("prefetch", "dali"),
        _cloned_in_the_consumers_stream,
    ),
    Mutant("dali: it waits for the copies", _loads("prefetch", "dali"), _dali_does_not_wait),
    Mutant(
        "dali: the copies are recorded on the step's stream",
        _loads("prefetch", "dali"),
        _patched(DeviceTensor, "record_stream", _nothing),
    ),
]
