"""The source that reads any store: it orders records, and lets workers read them in batches."""

from collections.abc import Callable
from contextlib import closing
from itertools import tee
from typing import Protocol, final

from framework.contracts.batch import Batch
from framework.contracts.data import Content, MicroBatch, MicroBatches, SourceContext
from framework.contracts.records import Manifest, RecordStore, notes_of
from framework.data.collate import Padding, with_nested
from framework.data.reader import BatchReader, Request
from framework.data.workers import AHEAD, Workers
from framework.errors import DataError
from framework.order.batches import Order, spread
from framework.store.columns import StoreFacts
from framework.system.malloc import keep_freed_memory


class Counter(Protocol):
    """Counts what batches hold. One thread adds, any thread takes."""

    def add(self, batch: Batch) -> None: ...

    def take(self) -> Content: ...


@final
class StoreSource:
    """A Source over a store, read by workers.

    Args:
        store: The records. ``close`` closes the store.
        context: The order, the transform, the workers and the other settings.
        on_close: Called by the first ``close``.
        counter: Counts what batches hold besides padding, or None.
    """

    graph_refusal = None

    def __init__(
        self,
        store: RecordStore,
        context: SourceContext,
        on_close: Callable[[], None] | None = None,
        counter: Counter | None = None,
    ) -> None:
        keep_freed_memory()
        self.store = store
        self.context = context
        self.order: Order = make_order(store, context)
        self.read = BatchReader(store, context)
        # Nested tensors do not pass between processes. Making them takes microseconds.
        self._is_nested = context.collate == "nested" and bool(self.read.ragged)
        num_workers = context.num_workers
        if num_workers is None:
            # Without decoding, passing a batch between threads costs more than reading it.
            num_workers = 0
            if self.read.decodes:
                num_workers = context.num_cores
        self.workers = Workers(
            self.read,
            num_workers,
            context.worker_kind,
            context.worker_timeout_s,
            context.start_method,
        )
        self._first_epoch: int | None = None
        self._counters: list[Counter] = [Padding(self.read.padded)]
        if counter is not None:
            self._counters.append(counter)
        self._on_close = on_close

    @property
    def manifest(self) -> Manifest:
        return self.store.manifest

    @property
    def notes(self) -> tuple[str, ...]:
        return notes_of(self.store)

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        self.store.check()
        if self._first_epoch is None:
            self._first_epoch = epoch
        training = self.context.training
        verify = self.context.verifies(epoch, self._first_epoch)
        shares, ahead = tee(self.order.shares(epoch, start))
        requests = (Request(epoch, share.indices, training, verify) for share in ahead)
        with closing(self.workers.map(requests)) as batches:
            for share, batch in zip(shares, batches, strict=False):
                batch = self._finished(batch)  # noqa: PLW2901
                for counter in self._counters:
                    counter.add(batch)
                yield MicroBatch(batch, share.weight, share.last)

    @property
    def num_ahead(self) -> int:
        """The most batches that workers read ahead of the consumer."""
        if self.workers.kind == "process":
            return AHEAD * self.workers.num
        return AHEAD * min(1, self.workers.num)

    def sample(self, count: int) -> Batch:
        indices = spread(self.order.num_records, min(count, self.order.num_records))
        return self._finished(self.read(Request(0, indices, training=False)))

    def content(self) -> Content:
        return {name: pair for part in self._counters for name, pair in part.take().items()}

    def _finished(self, batch: Batch) -> Batch:
        if self._is_nested:
            return with_nested(batch)
        return batch

    def stages(self) -> dict[str, float]:
        return self.workers.stages.take()

    def close(self) -> None:
        self.workers.close()
        self.store.close()
        if self._on_close is not None:
            self._on_close()
            self._on_close = None


def make_order(store: RecordStore, context: SourceContext) -> Order:
    """Return the order of a store's records. DataError D109 if the store is empty."""
    order = context.order(store.manifest.num_records, StoreFacts(store))
    if order.num_records == 0:
        raise DataError(109, store.manifest.source or "the store", "has no records", "pack some")
    return order
