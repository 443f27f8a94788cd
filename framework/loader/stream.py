"""Prefetch, and copy ahead of the step too, in a CUDA stream of its own.

These rules keep it right (docs/design/0003-stream.md):

- One stream serves the loader's whole life, since the allocator keeps a pool per stream.
- A copy starts after what the consumer had queued when it asked for the batch. Otherwise memory
  that the consumer gave back would be overwritten too soon.
- The consumer waits for the copy's event, and every tensor is recorded on the consumer's stream.
- The pinned host batch is held until its copy's event is done.

Source: timm's PrefetchLoader, pull request 2784, which corrects the same points.
"""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, final

import torch

from framework.contracts.batch import Batch, move, tensors
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import LoaderContext
from framework.loader.queue import QueuedLoader, copied

# steps that the host may run ahead of a used copy; the device has that much queued work
AHEAD = 2


class _Copy(NamedTuple):
    device: MicroBatch
    host: Batch  # held: its pages may be reused once the event is done
    done: torch.cuda.Event


@final
class StreamLoader(QueuedLoader):
    """A loader that overlaps copies with steps.

    ``copies`` is the number of batches on their way to the device. A single copy runs before its
    own step, not beside the step before.
    """

    def __init__(self, depth: int, copies: int, *, context: LoaderContext) -> None:
        super().__init__(depth, context)
        self.copies = copies
        self.stream: torch.cuda.Stream | None = None
        if context.device.type == "cuda":
            self.stream = torch.cuda.Stream(context.device)
        else:
            what = f"{context.device} has no streams; the copy runs in line"
            self.notes = (f"loader=stream: {what}",)

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with self._ahead(epoch, start, pinned=self.stream is not None) as ahead:
            if self.stream is None:
                yield from copied(ahead, self.context, epoch)
            else:
                yield from self._overlapped(iter(ahead), epoch)

    def _overlapped(self, ahead: Iterator[MicroBatch], epoch: int) -> MicroBatches:
        under_way: deque[_Copy] = deque()
        used: deque[_Copy] = deque()
        exhausted = False
        failure: Exception | None = None
        while True:
            while not exhausted and len(under_way) < self.copies:
                try:
                    micro = next(ahead, None)
                except Exception as error:  # noqa: BLE001  # raised after the batches before it
                    micro = None
                    failure = error
                exhausted = micro is None
                if micro is not None:
                    under_way.append(self._start(micro, epoch))
            if not under_way:
                if failure is not None:
                    raise failure
                return
            copy = under_way.popleft()
            self.context.clock.mark("wait")
            self._arrive(copy)
            used.append(copy)
            # a host that runs far ahead of the device would fill both memories with batches
            while used and (used[0].done.query() or len(used) > self.copies + AHEAD):
                used.popleft().done.synchronize()
            self.context.clock.mark("copy")
            yield copy.device

    def _start(self, micro: MicroBatch, epoch: int) -> _Copy:
        assert self.stream is not None
        self.stream.wait_stream(torch.cuda.current_stream(self.context.device))
        with torch.cuda.stream(self.stream):
            batch = self.context.augment(move(micro.batch, self.context.device), epoch)
            done = torch.cuda.Event()
            done.record(self.stream)
        return _Copy(micro._replace(batch=batch), micro.batch, done)

    def _arrive(self, copy: _Copy) -> None:
        current = torch.cuda.current_stream(self.context.device)
        current.wait_event(copy.done)
        for tensor in tensors(copy.device.batch).values():
            tensor.record_stream(current)
