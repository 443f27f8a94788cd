"""Sources that order records and let workers read them in batches: of any store, for example."""

import multiprocessing
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import tee
from typing import Any, Generic, TypeVar, final

from torch import Tensor

from framework.contracts.batch import Batch, size_bytes
from framework.contracts.data import Content, MicroBatch, MicroBatches, Source, SourceContext, keyed
from framework.contracts.records import Manifest, Records, RecordStore, notes_of
from framework.contracts.waits import SlowRecords, Waits
from framework.data.fields import LabelMap, Padding, cut_fields, with_nested
from framework.data.reader import BatchReader, Reader, Request
from framework.data.workers import Workers
from framework.errors import ConfigError, DataError, words_of
from framework.loader.prefetch import PrefetchLoader
from framework.loader.tuner import Observation, ReadPlan, Tuner, TunerLimits
from framework.measure import host
from framework.order.batches import Order, RecordFacts
from framework.order.select import chosen
from framework.store import staging
from framework.store.open_store import ShardedStore, files_of
from framework.store.store_facts import StoreFacts
from framework.system.memory import CopyEngineError, keep_freed_memory

R = TypeVar("R", bound=Reader)
UNEVEN = 107  # the number of the error for images of several sizes in a batch
LOOK_S = 4.0  # between two observations; each takes about a millisecond
LEAST_BATCHES = 4  # of an observation
MOST_PER_CORE = 4  # workers; more of them wait for storage than for cores
LEAST_MOST = 8
MOST_WORKERS = 128
BUDGET_SHARE = 0.25  # of the free memory: what may be added
MOST_NOTED = 100  # decisions in the summary
STAGES = ("none", "cold", "ram", "device")


class WorkerSource(Source, Generic[R]):
    """What the sources whose batches are read by workers share.

    ``kind`` is that of the workers if the context does not choose one. ``lengths`` are the names of
    the lengths of padded arrays, by field.
    """

    reads_on = True  # records are the same whenever they are read
    takes_workers = True  # workers can read its records

    def __init__(
        self,
        read: R,
        manifest: Manifest,
        order: Order,
        context: SourceContext,
        kind: str,
        lengths: Mapping[str, str],
    ) -> None:
        keep_freed_memory()
        self.context = context
        self.order = order
        if order.sampler is not None:  # it may look at what an epoch has learned
            self.reads_on = False
        self.read = read
        self.manifest = manifest
        self._labels: LabelMap | None = None
        num = context.num_workers
        if num is None:
            # Without decoding, passing a batch between threads costs more than reading it.
            num = context.num_cores if read.decodes else 0
        kind = context.worker_kind or kind
        self.workers = Workers(read, num, kind, context.worker_timeout_s, context.start_method)
        self._is_verified = False  # whether a pass with ``verify`` has come to its end
        self._padding = Padding(lengths)
        self.batch_bytes = 0  # of the first batch

    def read_batches(self, requests: Iterator[Request]) -> Generator[Batch]:
        """Yield one batch per request, in order, for the thread that calls."""
        return self.workers.map(requests)

    def read_batch(self, request: Request) -> Batch:
        """Read a batch without the workers."""
        return self.read(request)

    def batches(self, epoch: int, start: int = 0) -> MicroBatches:
        return self.stream(epoch, start, self.order.num_steps - start)

    def stream(self, epoch: int, start: int, steps: int) -> MicroBatches:
        self.read.check()
        training = self.context.training
        verify_on = self.context.verify == "always"
        verify = verify_on or (self.context.verify == "first_epoch" and not self._is_verified)
        # The pass that is verified has ended when a next epoch begins.
        verifies = {epoch: verify}
        steps_left = self.order.num_steps - start
        shares, ahead = tee(self.order.shares_on(epoch, start, steps))
        requests = (
            Request(number, own.indices, training, verifies.get(number, verify_on), own.keys)
            for number, own in ahead
        )
        ledger = self.workers.ledger
        ledger.begin()
        with closing(self.read_batches(requests)) as batches:
            for (_, share), batch in zip(shares, batches, strict=False):
                batch = keyed(self._finished(batch), share)  # noqa: PLW2901
                self._padding.add(batch)
                ledger.delivered(len(share.indices))
                if not self.batch_bytes:
                    self.batch_bytes = size_bytes(batch)
                steps_left -= share.last
                if verify and not steps_left:  # before the consumer closes this generator
                    self._is_verified = True
                yield MicroBatch(batch, share.weight, share.last)

    @property
    def starts_processes(self) -> bool:
        return self.workers.num_to_start > 0

    def check(self) -> None:
        self.read.check()

    def sample(self, count: int) -> Batch:
        indices = self.order.sample(count)
        ways = [(indices, False)]
        if self.context.training:  # a function may give images one size, but in training alone
            ways.append((indices, True))
        if self.order.batch_size == 1:
            ways.append((indices[:1], self.context.training))
        while True:
            way = ways.pop(0)
            try:
                return self._finished(self.read_batch(Request(0, *way)))
            except DataError as error:
                if error.args[0] != UNEVEN or not ways:
                    raise

    def records(self, indices: Tensor) -> Batch:
        return self._finished(self.read_batch(Request(0, indices, training=False)))

    def content(self) -> Content:
        return self._padding.take()

    def _finished(self, batch: Batch) -> Batch:
        # Nested tensors do not pass between processes. Making them takes microseconds.
        if self.context.collate == "nested":
            batch = with_nested(batch)
        return batch if self._labels is None else self._labels(batch)

    def renumber(self, labels: LabelMap) -> None:
        self._labels = labels
        self.manifest = labels.manifest(self.manifest)

    @property
    def notes(self) -> tuple[str, ...]:
        return () if self._labels is None else (self._labels.note,)

    def stages(self) -> dict[str, float]:
        return self.workers.stages.take()

    @property
    def slow_batches(self) -> set[int]:
        return self.workers.ledger.slow_batches

    def slow_records(self) -> SlowRecords | None:
        return self.workers.ledger.report(sum(self.workers.stages.sums_s.values()), self.read.name)

    def close(self) -> None:
        self.workers.close()


@final
class StoreSource(WorkerSource[BatchReader]):
    """A Source over a store, read by workers. ``close`` closes the store.

    ``on_close`` is called by the first ``close``. ``locked`` reads records for a GPU without
    gathering large ones.
    """

    def __init__(
        self,
        store: RecordStore,
        context: SourceContext,
        on_close: Callable[[], None] | None = None,
        locked: Callable[[Tensor], Records] | None = None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.store = store
        self._notes = notes
        self._on_close = on_close
        manifest = store.manifest
        order = make_order(manifest.num_records, manifest.source, context, StoreFacts(store))
        read = BatchReader(store, context, locked)
        # One thread that decodes PNG or WebP takes a tenth of the operations that a step launches
        # on a GPU (docs/measured.md).
        is_apart = context.device.type == "cuda" and read.decodes_in_python()
        kind = "process" if is_apart else "thread"
        super().__init__(read, manifest, order, context, kind, read.padded)
        self.takes_workers = not isinstance(store, staging.ResidentStore)

    @property
    def notes(self) -> tuple[str, ...]:
        return super().notes + notes_of(self.store) + self._notes

    finds_records = True

    def key(self, index: int) -> str:
        return self.store.key(index)

    def close(self) -> None:
        super().close()
        self.store.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def packed_source(
    path: str, open_file: Callable[[str], RecordStore], stage: str, context: SourceContext
) -> StoreSource:
    """Return a source of the packed store at ``path``, a file or a directory of shards.

    ``stage`` is where to keep the data: ``none`` (on disk), ``cold``, ``ram`` or ``device``.
    """

    def opened(place: str) -> RecordStore:
        return ShardedStore(place, open_file) if os.path.isdir(place) else open_file(place)

    if stage not in STAGES:
        fix = f"choose one of {', '.join(STAGES)}"
        raise ConfigError(172, f"data.stage = {stage}", "not a place to keep data", fix)
    if stage == "ram":
        with ExitStack() as stack:
            staged = staging.Staged(path)
            stack.callback(staged.close)
            store = opened(staged.path)
            locked: staging.LockedRecords | None = None
            notes: tuple[str, ...] = ()
            is_read_here = not context.num_workers and context.verify != "always"
            if context.device.type == "cuda" and is_read_here:
                # Whether a GPU can copy records as they are stored.
                is_whole = not cut_fields(store.manifest, context.transform)
                try:
                    if is_whole and staging.lockable(store):
                        locked = staging.LockedRecords(store, context.device)
                        stack.callback(locked.close)
                except (CopyEngineError, OSError) as error:
                    why = f"the GPU cannot copy records by itself ({words_of(error)})"
                    notes = (f"data.stage=ram: {why}; the cores gather them",)
            to_close = ExitStack()
            source = StoreSource(store, context, to_close.close, locked=locked, notes=notes)
            to_close.push(stack.pop_all())
        return source
    staging.remove_leftovers()
    if stage == "cold":
        staging.drop_cached(files_of(path))
    store = opened(path)
    if stage == "device":
        transform = context.transform
        if context.num_workers:
            where = f"workers.num = {context.num_workers}, data.stage = device"
            what = "needs no workers: a batch is one gather on the device"
            raise ConfigError(171, where, what, "leave workers.num out")
        if transform.size is not None or transform.num_draws or transform.function is not None:
            what = "a transform works on the host, the data is on the device"
            fix = "set transform=none and choose an augment, or data.stage=ram"
            raise ConfigError(171, "data.stage = device", what, fix)
        store = staging.ResidentStore(store, context.device)
    return StoreSource(store, context)


def make_order(
    num_records: int, source: str, context: SourceContext, facts: RecordFacts | None = None
) -> Order:
    """Return the order of a data set's records. DataError D109 if there are none.

    ConfigError C200 for an order by facts that are not known, C204 or C205 for a wrong selection.
    """
    order = context.order(num_records)
    if order.num_records == 0:
        raise DataError(109, source or "the store", "has no records", "give it at least one")
    facts = facts or StoreFacts(None)
    selected = chosen(num_records, facts, context.select, context.fold, context.training)
    if selected is not None:
        order = replace(order, selected=selected)
    if context.order_choice is not None:
        return context.order_choice.order(order, facts, context.training)
    return order


@final
class LiveTuning:
    """``workers.num=auto``: a tuner that changes how a run reads its records while it trains.

    It observes the run every few seconds, in the thread of the step, and applies what is decided.
    The queue of ``loader`` may be deepened. ``cores`` are those of this rank, and ``say`` prints a
    note. ConfigError C174 if the source has no workers that could be changed.
    """

    def __init__(
        self, source: object, loader: object, waits: Waits, cores: int, say: Callable[[str], None]
    ) -> None:
        if not isinstance(source, WorkerSource) or not source.takes_workers:
            what = "the chosen data has no workers whose number could be changed"
            raise ConfigError(174, "workers.num = auto", what, "leave workers.num out")
        self._source: WorkerSource[Any] = source
        self._queue = loader if isinstance(loader, PrefetchLoader) else None
        self._waits = waits
        self._say = say
        self._cores = cores
        limits = TunerLimits(
            num_cores=cores,
            most_workers=min(MOST_WORKERS, max(LEAST_MOST, MOST_PER_CORE * cores)),
            budget_bytes=BUDGET_SHARE * host.available_memory_bytes(),
            are_processes=source.workers.kind == "process",
        )
        self._tuner = Tuner(self._present_plan(), limits)
        self._began_at = time.perf_counter()
        self._before = self._counters()
        self.decisions: list[dict[str, Any]] = []  # in words, with the seconds since the start
        self._num_taken = 0
        waits.call(self.look)

    def _present_plan(self) -> ReadPlan:
        workers = self._source.workers
        depth = self._queue.depth if self._queue is not None else 0
        return ReadPlan(workers.num, workers.ahead, depth)

    @property
    def plan(self) -> dict[str, int]:
        return dict(self._tuner.plan._asdict())

    def take(self) -> dict[str, Any]:
        """Return the present plan, and the decisions since the last call, in plain values."""
        block: dict[str, Any] = dict(self.plan)
        if new := self.decisions[self._num_taken :]:
            self._num_taken = len(self.decisions)
            block["decisions"] = [decision["text"] for decision in new]
        return block

    def summary(self) -> dict[str, Any]:
        """Return the present plan, and the newest decisions of the run."""
        return {**self.plan, "decisions": self.decisions[-MOST_NOTED:]}

    def look(self, now: float) -> float:
        """Observe and decide. Return when to look again, by ``perf_counter``."""
        waits, before = self._waits, self._before
        num_batches = waits.num_batches - before["num_batches"]
        train_s = waits.wait_s - waits.start_s + waits.step_s - before["train_s"]
        if num_batches < LEAST_BATCHES or train_s < LOOK_S / 2:
            return now + LOOK_S / 4
        self._before = self._counters()
        change = {name: value - before[name] for name, value in self._before.items()}
        seconds = max(change["train_s"], 1e-9)
        wall_s = max(change["at"], 1e-9)
        queue_share = None
        if self._queue is not None and change["num_taken"]:
            queue_share = change["num_ready"] / change["num_taken"] / max(1, self._queue.depth)
        order, workers = self._source.order, self._source.workers
        pids = [child.pid for child in multiprocessing.active_children() if child.pid]
        workers_bytes = [float(host.rss_bytes(pid, with_shared=False)) for pid in pids]
        observation = Observation(
            seconds=seconds,
            num_batches=int(change["num_batches"]),
            wait_share=change["wait_s"] / seconds,
            busy_workers=change["read_s"] / wall_s,
            queue_share=queue_share,
            free_cores=self._cores - change["own_s"] / wall_s,
            free_memory=host.available_memory_bytes() / host.total_memory_bytes(),
            batch_bytes=self._source.batch_bytes,
            num_slices=workers.num_slices(order.smallest_pass(order.batch_size)),
            worker_bytes=max(workers_bytes, default=0.0),
            is_changing=workers.is_changing,
        )
        decision = self._tuner.observe(observation)
        if decision is not None:
            old, new = self._present_plan(), decision.plan
            workers.change(new.num_workers, new.ahead)
            if self._queue is not None and new.depth != old.depth:
                self._queue.deepen(new.depth)
            names = ("workers", "batches read ahead", "loader depth")
            triples = zip(names, old, new, strict=True)
            changes = [f"{name} {a} -> {b}" for name, a, b in triples if a != b]
            text = f"{', '.join(changes)}: {decision.why}"
            at_s = round(time.perf_counter() - self._began_at, 1)
            self.decisions.append({"at_s": at_s, "text": text})
            self._say(f"note: {text}")
        return now + LOOK_S

    def _counters(self) -> dict[str, float]:
        waits, queue = self._waits, self._queue
        pids = [child.pid for child in multiprocessing.active_children() if child.pid]
        own_s = time.process_time() + sum(host.process_cpu_s(pid) or 0.0 for pid in pids)
        wait_s = waits.wait_s - waits.start_s  # nothing is ready for an epoch's first batch
        return {
            "at": time.perf_counter(),
            "wait_s": wait_s,
            "train_s": wait_s + waits.step_s,
            "num_batches": waits.num_batches,
            "read_s": sum(self._source.workers.stages.sums_s.copy().values()),
            "own_s": own_s,
            "num_ready": queue.occupancy.num_ready if queue is not None else 0,
            "num_taken": queue.occupancy.num_taken if queue is not None else 0,
        }
