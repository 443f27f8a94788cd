"""Prefetch, and the copy too runs ahead of the step, in a CUDA stream of its own.

The rules that keep it right (docs/design/0003-stream.md): one stream for the loader's life, since the allocator keeps a pool per
stream; a batch's copy starts after what the consumer had queued when it asked, so memory it gave back is not overwritten too soon;
the consumer waits for the copy's event; every tensor is recorded on the consumer's stream; the pinned host batch is held until its
copy's event is done. Source: timm's PrefetchLoader, pull request 2784, which mends the same points.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple, final

import torch

from framework.contracts.batch import Batch, move, pin, tensors, use
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import LoaderContext, LoaderStats
from framework.loader.queue import Ahead, Occupancy
from framework.system.native import beside

AHEAD = 2  # steps that the host may be ahead of those whose batches it has started to copy; the device has that much queued work


class _Copy(NamedTuple):
    device: MicroBatch
    host: Batch  # held: its pages may be reused once the event is done
    done: torch.cuda.Event


@final
class StreamLoader:
    """``depth``: host batches ready ahead; ``copies``: batches on their way to the device; of one alone the copy
    runs before its step, not beside the one before.
    """

    def __init__(self, depth: int, copies: int, *, context: LoaderContext) -> None:
        self.context, self.depth, self.copies = context, depth, copies
        self.num_steps, self.identity = (
            context.source.order.num_steps,
            context.source.order.identity,
        )
        self._occupancy = Occupancy()
        cuda = context.device.type == "cuda"
        self.stream = torch.cuda.Stream(context.device) if cuda else None
        self.notes: tuple[str, ...] = (
            ()
            if cuda
            else (f"loader=stream: {context.device} has no streams; the copy runs in line",)
        )

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        threads = beside(self.context.device)
        with closing(
            Ahead(self._host(epoch, start), self.depth, self._occupancy, threads)
        ) as ahead:
            yield from (
                self._in_line(iter(ahead), epoch)
                if self.stream is None
                else self._overlapped(iter(ahead), epoch)
            )

    def _in_line(self, ahead: Iterator[MicroBatch], epoch: int) -> MicroBatches:
        context = self.context
        for batch, weight, last in ahead:
            context.clock.mark("wait")
            device_batch = context.augment(move(batch, context.device), epoch)
            context.clock.mark("copy")
            yield MicroBatch(device_batch, weight, last)

    def _overlapped(self, ahead: Iterator[MicroBatch], epoch: int) -> MicroBatches:
        under_way: deque[_Copy] = deque()
        used: deque[_Copy] = deque()
        exhausted, failure = False, None
        while True:
            while not exhausted and len(under_way) < self.copies:
                try:
                    micro = next(ahead, None)
                except Exception as error:  # noqa: BLE001  # told when what came before it has been handed over
                    micro, failure = None, error
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
            while used and (used[0].done.query() or len(used) > self.copies + AHEAD):
                used.popleft().done.synchronize()  # a host that runs far ahead of the device would fill both memories with batches
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

    def _host(self, epoch: int, start: int) -> MicroBatches:
        use(self.context.device, self.stream is not None)
        with closing(self.context.source.batches(epoch, start)) as batches:
            for micro in batches:
                yield micro if self.stream is None else micro._replace(batch=pin(micro.batch))

    @property
    def num_ready(self) -> int:
        """Batches that lay ready when the newest one was taken."""
        return self._occupancy.newest

    def stats(self) -> LoaderStats:
        return LoaderStats(self.context.source.stages(), self._occupancy.take(), self.depth)

    def close(self) -> None:
        self.context.source.close()
