"""Guards of the CUDA code, each taken away, and the work that must go wrong without it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any
from unittest import mock

import torch

from framework.contracts.batch import tensors
from framework.data.dali import DALISource
from framework.loader import prefetch, stream
from framework.loader.stream import StreamLoader
from framework.system import memory
from framework.train.cuda_graph import CudaRecorder, StepSlots
from tests.simulated_cuda import patch, training
from tests.simulated_cuda.device import Device, Stream
from tests.simulated_cuda.host import loads, loads_aside, loads_nested, trains
from tests.simulated_cuda.tensors import DeviceTensor

Work = Callable[[str, Device], bool]
Broken = Callable[[], AbstractContextManager[Any]]


def failing(work: Work, path: str, seeds: range, broken: Broken = nullcontext) -> Iterator[int]:
    """Yield the seeds whose schedule makes the work go wrong, inside the context ``broken``."""
    for seed in seeds:
        with patch.simulated(seed) as device, broken():
            try:
                is_right = work(path, device)
            except Exception:  # noqa: BLE001  # a damaged batch may raise anything
                is_right = False
        if not is_right:
            yield seed


def _patched(where: Any, name: str, put: Any) -> Broken:
    return lambda: mock.patch.object(where, name, put)


def _nothing(*_: Any) -> None:
    pass


def _event_before_the_copy() -> AbstractContextManager[Any]:
    start = StreamLoader._start

    def too_early(loader: StreamLoader, micro: Any) -> Any:
        event = torch.cuda.Event()
        event.record(loader.stream)
        return start(loader, micro)._replace(done=event)

    return mock.patch.object(StreamLoader, "_start", too_early)


def _thread_on_the_default_stream() -> AbstractContextManager[Any]:
    use = memory.use
    return mock.patch.object(
        prefetch, "use", lambda device, pinned, stream=None: use(device, pinned)
    )


def _block_for_all_batches() -> AbstractContextManager[Any]:
    end = memory.Block.end

    def kept(block: memory.Block) -> Any:
        own = block._memory
        used = end(block)
        block._memory = own
        return used

    return mock.patch.object(memory.Block, "end", kept)


def _aside(waits: str) -> Broken:
    """Do warm-up steps aside with only one of the two waits, ``before`` or ``after``."""

    def aside(recorder: CudaRecorder, work: Callable[[], Any]) -> Any:
        current = torch.cuda.current_stream()
        if waits == "before":
            recorder._stream.wait_stream(current)
        with torch.cuda.stream(recorder._stream):
            result = work()
        if waits == "after":
            current.wait_stream(recorder._stream)
        return result

    return _patched(CudaRecorder, "aside", aside)


def _counter_that_stands_still() -> AbstractContextManager[Any]:
    end = StepSlots.end

    def without_counting(slots: StepSlots, outcome: Any) -> None:
        end(slots, outcome)
        slots._place.sub_(1)

    return mock.patch.object(StepSlots, "end", without_counting)


def _cloned_in_the_consumers_stream(_: DALISource, outputs: Any) -> list[torch.Tensor]:
    """Clone DALI's outputs behind the steps that are queued."""
    return [torch.from_dlpack(output.as_tensor()).clone() for output in outputs]


@contextmanager
def _dali_does_not_wait() -> Iterator[None]:
    """Let DALI continue before the copies of its outputs are done."""
    copies = DALISource._copies

    def at_once(source: DALISource, outputs: Any) -> list[torch.Tensor]:
        with mock.patch.object(Stream, "synchronize", _nothing):
            copied = copies(source, outputs)
        torch.cuda.current_stream().wait_stream(source._stream)
        return copied

    with mock.patch.object(DALISource, "_copies", at_once):
        yield


NOT_RECORDED = _patched(DeviceTensor, "record_stream", _nothing)
NO_EVENT = _patched(Stream, "wait_event", _nothing)
PLAIN_RAM = partial(loads, kind="plain", stage="ram")
PREFETCH_DALI = partial(loads, kind="prefetch", stage="dali")

# By the name of the guard: the work that needs it, and the context in which it is taken away.
MUTANTS: dict[str, tuple[Work, Broken]] = {
    "stream: the step waits for the copy's event": (loads, NO_EVENT),
    "stream: copied tensors are recorded on the step's stream": (loads, NOT_RECORDED),
    "stream: nested tensors are recorded, too": (
        loads_nested,
        _patched(stream, "leaves", lambda batch: tensors(batch).values()),
    ),
    "stream: the event follows the copy": (loads, _event_before_the_copy),
    "stream: a batch has page-locked memory of its own": (loads, _block_for_all_batches),
    "stream: the thread gathers in the step's stream (data.stage=device)": (
        partial(loads_aside, stage="device"),
        _thread_on_the_default_stream,
    ),
    "prefetch: the thread gathers in the step's stream (data.stage=device)": (
        partial(loads_aside, kind="prefetch", stage="device"),
        _thread_on_the_default_stream,
    ),
    "plain: the step waits for pieces that are copied in another stream (data.stage=ram)": (
        PLAIN_RAM,
        _patched(Stream, "wait_stream", _nothing),
    ),
    "plain: these are recorded on the step's stream (data.stage=ram)": (PLAIN_RAM, NOT_RECORDED),
    "stream: the step waits for pieces (data.stage=ram)": (partial(loads, stage="ram"), NO_EVENT),
    "graph: a warm-up step waits for its batch": (trains, _aside("after")),
    "graph: the next step waits for a warm-up step": (trains, _aside("before")),
    "graph: outcomes are kept before their slots are used again": (
        trains,
        _patched(StepSlots, "_keep_given", _nothing),
    ),
    "graph: each step leaves its outcome in a slot of its own": (
        trains,
        _counter_that_stands_still,
    ),
    "graph: the batch is copied to where the graph reads it": (
        trains,
        _patched(torch, "_foreach_copy_", _nothing),
    ),
    "graph: the table has the rates of the next steps": (
        trains,
        _patched(training.Update, "rates_of", lambda *_: [0.1]),
    ),
    "dali: outputs are copied in a stream of their own": (
        PREFETCH_DALI,
        _patched(DALISource, "_copies", _cloned_in_the_consumers_stream),
    ),
    "dali: it waits for the copies": (PREFETCH_DALI, _dali_does_not_wait),
    "dali: the copies are recorded on the step's stream": (PREFETCH_DALI, NOT_RECORDED),
}
