"""Prefetch, and copy ahead of the step too, in a CUDA stream of its own.

docs/design/0003-stream.md has the rules that keep this right. tests/simulated_cuda breaks each.
Source: timm's PrefetchLoader, pull request 2784, which corrects the same points.
"""

from collections import deque
from typing import NamedTuple, final

import torch
from torch import Tensor

from framework.contracts.batch import leaves, move
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import LoaderContext
from framework.loader.prefetch import Pace, PrefetchLoader, copied


class _Copy(NamedTuple):
    micro: MicroBatch  # on the device once the event is done
    moved: list[Tensor]
    done: torch.cuda.Event


@final
class StreamLoader(PrefetchLoader):
    """A loader that overlaps copies with steps.

    ``copies`` is the number of batches on their way to the device. A single copy runs before its
    own step, not beside the step before.
    """

    def __init__(self, depth: int, copies: int, *, context: LoaderContext) -> None:
        super().__init__(depth, pin_memory=True, context=context)
        self.copies = self.num_beyond = copies
        self.stream: torch.cuda.Stream | None = None
        if context.device.type == "cuda":
            self.stream = torch.cuda.Stream(context.device)
        else:
            self.notes = (f"loader=stream: {context.device} has no streams; the copy runs in line",)

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        clock, waits = self.context.clock, self.context.waits
        under_way: deque[_Copy] = deque()
        failure: Exception | None = None
        is_exhausted = False
        with self._host(epoch, start) as batches:
            if self.stream is None:
                yield from copied(batches, self.context, epoch, self._number)
                return
            assert self._running is not None
            pace = Pace(self.context.device)
            waits.begin(self._number)
            while True:
                # a batch that is on its way must not wait for one that the host has not made yet
                while (
                    not is_exhausted
                    and len(under_way) < self.copies
                    and (self._running.is_ready or not under_way)
                ):
                    try:
                        micro = next(batches, None)
                    except Exception as error:  # noqa: BLE001  # raised after the batches before it
                        micro = None
                        failure = error
                    is_exhausted = micro is None
                    if micro is not None:
                        under_way.append(self._start(micro))
                if not under_way:
                    if failure is not None:
                        raise failure
                    return
                copy = under_way.popleft()
                clock.mark("wait")
                waits.arrived()
                current = torch.cuda.current_stream(self.context.device)
                current.wait_event(copy.done)
                for tensor in copy.moved:
                    tensor.record_stream(current)
                batch = self.context.augment(copy.micro.batch, epoch)
                clock.mark("copy")
                yield copy.micro._replace(batch=batch)
                del batch, copy
                pace.end_pass()
                waits.ask()

    def _start(self, micro: MicroBatch) -> _Copy:
        assert self.stream is not None
        with torch.cuda.stream(self.stream):
            batch = move(micro.batch, self.context.device)
            done = torch.cuda.Event()
            done.record(self.stream)
        host = {id(tensor) for tensor in leaves(micro.batch)}
        moved = [tensor for tensor in leaves(batch) if id(tensor) not in host]
        return _Copy(micro._replace(batch=batch), moved, done)
