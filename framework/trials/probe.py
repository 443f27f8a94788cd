"""Measure how fast the parts of a configured run are. Nothing is validated or written."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any, final

import torch

from framework.config.assemble import Assembly
from framework.config.auto import AUTO
from framework.config.training_parts import training_parts
from framework.contracts.batch import Batch, taken
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import Loader, LoaderStats
from framework.data.source import WorkerSource
from framework.loader.prefetch import PrefetchLoader
from framework.measure.statistics import spread_share
from framework.train.trainer import Trainer

Config = dict[str, Any]
NUM_WINDOWS = 8
ENDLESS = 1 << 40  # epochs
LONGEST_START_S = 10.0


@dataclass(frozen=True)
class Rate:
    windows: tuple[float, ...]  # records per second in each window
    spans_s: dict[str, float]  # seconds per step of each span, over all windows
    busy_cores: float = 0.0  # CPU seconds per second of this process, without worker processes
    step_s: float = 0.0  # wall seconds per training step, including the first; 0 without steps

    @property
    def records_per_s(self) -> float:
        """The mean of all windows. Their median would describe the bursts within an epoch alone."""
        return fmean(self.windows)

    @property
    def spread(self) -> float:
        """Half the interquartile range, as a share of the median."""
        return spread_share(self.windows)


@final
@dataclass
class Windows:
    """Counts records in equal windows of time, so that the spread of a rate is known."""

    seconds: float  # of all windows together
    burn_in_s: float  # before the first window
    device: torch.device  # to wait for
    num_windows: int = NUM_WINDOWS
    # If steps are longer than windows, at least one window is filled until so long after the start.
    limit_s: float = math.inf
    # Batches that may be ready at the start. The first window starts after twice as many, or after
    # another half of ``seconds``: workers deliver at once what they read meanwhile.
    ahead: int = 0
    # Returns the batches that are ready now. If they become fewer, the windows consumed batches
    # that were prepared before, and these do not count.
    ready: Callable[[], int] = int
    # Worker processes that have to start, each of which delivers one of the first batches. The
    # burn-in begins when all have, or after `LONGEST_START_S`.
    num_starting: int = 0
    # Steps of an epoch. A window that has seen half an epoch continues until it has seen whole
    # epochs. In a short epoch, the first steps wait and the last only compute.
    period: int = 1

    def __post_init__(self) -> None:
        self.length_s = self.seconds / self.num_windows
        self.rates: list[float] = []
        self.busy_cores = 0.0
        self._count = 0
        self._left = 2 * self.ahead
        self._start = time.perf_counter()
        self._end = self._start + self.burn_in_s
        self._latest = self._end + self.seconds / 2
        self._limit = self._start + self.limit_s
        self._latest_start = self._start + LONGEST_START_S
        self._warm = False
        self._warm_at = 0.0
        self._cpu_s = 0.0
        self._num_ready = 0
        self._num_steps = 0
        self._num_records = 0

    def count(self, num_records: int) -> bool:
        """Count the records of a batch or step. Return whether all windows are full."""
        self._count += num_records
        self._num_steps += 1
        self._left -= 1
        now = time.perf_counter()
        if self.num_starting:  # put off the burn-in until all have started
            self.num_starting = 0 if now > self._latest_start else self.num_starting - 1
            took_s = now - self._start
            self._start = now
            self._end += took_s
            self._latest += took_s
            self._limit += took_s
            return False
        if now < self._end or (self._left > 0 and not self._warm and now < self._latest):
            return False
        if self._warm and 2 * self._num_steps >= self.period and self._num_steps % self.period:
            return False
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._warm:
            self.rates.append(self._count / (now - self._start))
            self._num_records += self._count
            self.busy_cores = (time.process_time() - self._cpu_s) / (now - self._warm_at)
        else:
            self._warm = True
            self._warm_at = now
            self._cpu_s = time.process_time()
            self._num_ready = self.ready()
            self._num_steps = 0
        self._count = 0
        self._start = now
        self._end = now + self.length_s
        return len(self.rates) == self.num_windows or (now > self._limit and bool(self.rates))

    def rate(self, spans_s: dict[str, float]) -> Rate:
        num_used_up = max(0, self._num_ready - self.ready())
        used_up = num_used_up * self._num_records / max(1, self._num_steps)
        used_up = min(used_up, self._num_records / 2)  # a few steps might have nothing left
        used_up_per_s = used_up / (self._start - self._warm_at)
        rates = tuple(rate - used_up_per_s for rate in self.rates)
        return Rate(rates, spans_s, self.busy_cores)


@final
class Probe:
    """The parts of a run (plain, resolved values), ready to be measured in ``num_windows`` each.

    A measurement of slow steps may take ``grace_s`` longer than planned. Each begins another epoch,
    from ``epoch`` on: the records just read are in memory, although the disk may be slow.
    """

    def __init__(
        self,
        config: Config,
        allowed: Sequence[str],
        num_windows: int = NUM_WINDOWS,
        grace_s: float = math.inf,
        epoch: int = 0,
    ) -> None:
        self.num_windows = num_windows
        self.grace_s = grace_s
        self._epoch = epoch
        self.given = config  # with validation, sinks and limits
        self.config: Config = {
            **config,
            "sink": {},
            "metrics": {},
            "resume": {"run": None, "auto": False, "allow": []},
            "max_steps": None,
            "validate_every": None,
            "epochs": ENDLESS,
            # Records are verified in the first epoch or always. Measure the other epochs.
            "verify": "always" if config["verify"] == "always" else "off",
            "data": {**config["data"], "val": None},
        }
        workers = self.config["workers"]
        if workers["num"] == AUTO:  # a tuner would change what is measured
            self.config = {**self.config, "workers": {**workers, "num": None}}
        self.assembly = Assembly(self.config, allowed)
        self.close = self.assembly.close

    def loader(self, seconds: float, burn_in_s: float = 0.5) -> Rate:
        """Take device batches as fast as they come."""
        windows = self._windows(seconds, burn_in_s, self.assembly.device, self.ahead)
        clock = self.assembly.clock
        clock.skip()
        clock.spans()
        num_batches = self._pull(self.assembly.train.epoch, windows)
        spans_s = {name: span.total_s for name, span in clock.spans().items()}
        return windows.rate({name: total_s / num_batches for name, total_s in spans_s.items()})

    def host(self, seconds: float, burn_in_s: float = 0.5) -> Rate:
        """Take host batches of the source alone: no loader, no copy, no augment."""
        windows = self._windows(seconds, burn_in_s, torch.device("cpu"), self.ahead)
        self._pull(self.assembly.train_source.batches, windows)
        return windows.rate({})

    def _pull(self, batches_of: Callable[[int], MicroBatches], windows: Windows) -> int:
        """Take batches of one epoch after another until all windows are full. Return how many."""
        num_batches = 0
        while True:
            self._epoch += 1
            with closing(batches_of(self._epoch - 1)) as batches:
                for batch, _, _ in batches:
                    num_batches += 1
                    if windows.count(len(batch["index"])):
                        return num_batches

    def visit(self, seconds: float, burn_in_s: float) -> Rate:
        """Take at least three training steps, in one window; the first does not count."""
        return self.train(seconds, burn_in_s, is_visit=True)

    def compute(
        self, seconds: float, burn_in_s: float = 1.0, num_records: int | None = None
    ) -> Rate:
        """Take training steps that repeat one batch (of ``num_records``) and never wait."""
        batch = self.batch
        if num_records is not None:
            batch = taken(batch, torch.arange(num_records) % len(batch["index"]))
        return self.train(seconds, burn_in_s, batch)

    @cached_property
    def batch(self) -> Batch:
        """The first device batch."""
        with closing(self.assembly.train.epoch(0)) as batches:
            return next(batches).batch

    @cached_property
    def host_batch(self) -> Batch:
        """The first host batch."""
        with closing(self.assembly.train_source.batches(0)) as batches:
            return next(batches).batch

    @property
    def ahead(self) -> int:
        """Batches that the source and the loader may read ahead of a step."""
        source, loader = self.assembly.train_source, self.assembly.train
        of_source = 0
        if isinstance(source, WorkerSource):
            batch_size = source.order.smallest_pass(source.order.batch_size)
            of_source = source.workers.most_ahead(batch_size)
        # by type, since a user's loader may use the same names for something else
        return of_source + (loader.depth if isinstance(loader, PrefetchLoader) else 0)

    def ready(self) -> int:
        loader = self.assembly.train
        return loader.occupancy.newest if isinstance(loader, PrefetchLoader) else 0

    def train(
        self,
        seconds: float,
        burn_in_s: float = 1.0,
        batch: Batch | None = None,
        is_visit: bool = False,
    ) -> Rate:
        """Take training steps, all with the same ``batch`` if it is given."""
        counted = Counted(self.assembly, batch)
        device = self.assembly.device
        ahead = self.ahead if batch is None else 0
        windows: Windows | None = None

        def is_done() -> bool:
            nonlocal windows
            num_records = counted.num_records
            counted.num_records = 0
            if windows is not None:
                return windows.count(num_records)
            windows = Windows(seconds, burn_in_s, device, 1, ahead=ahead, ready=self.ready)
            windows.period = counted.num_steps
            return False

        parts = training_parts(self.assembly, stop=is_done)
        trainer = Trainer(replace(parts, train=counted, val=None))
        trainer.progress.epoch = self._epoch
        if not is_visit:  # its time starts here: building the trainer is no part of the burn-in
            windows = self._windows(seconds, burn_in_s, device, ahead)
        start = time.perf_counter()
        trainer.fit()
        wall_s = time.perf_counter() - start
        assert windows is not None
        self._epoch = max(self._epoch, trainer.progress.epoch + 1)
        num_steps = trainer.progress.step
        spans = trainer.spans.whole
        rate = windows.rate({name: span.total_s / num_steps for name, span in spans.items()})
        return replace(rate, step_s=wall_s / num_steps)

    def _windows(
        self, seconds: float, burn_in_s: float, device: torch.device, ahead: int
    ) -> Windows:
        limit_s = 1.5 * seconds + burn_in_s + self.grace_s
        ready = self.ready if ahead else int
        source = self.assembly.train_source
        num_starting = 0  # worker processes that the next epoch has to start
        if ahead and isinstance(source, WorkerSource):
            num_starting = source.workers.num_to_start
        return Windows(
            seconds, burn_in_s, device, self.num_windows, limit_s, ahead, ready, num_starting
        )


@final
class Counted(Loader):
    """The loader of a run, whose records are counted; or one device batch at every step."""

    def __init__(self, assembly: Assembly, batch: Batch | None = None) -> None:
        self._assembly = assembly
        self._batch = batch
        self.num_records = 0  # so far; set it to 0 to count anew
        self.num_steps = assembly.train.num_steps
        self.identity = assembly.train.identity
        self.notes = assembly.train.notes

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        if self._batch is None:
            with closing(self._assembly.train.epoch(epoch, start)) as batches:
                for micro in batches:
                    self.num_records += len(micro.batch["index"])
                    yield micro
            return
        passes: int = self._assembly.config["accumulate"]
        for number in range(start * passes, self.num_steps * passes):
            self._assembly.clock.mark("wait")
            self._assembly.clock.mark("copy")
            self.num_records += len(self._batch["index"])
            yield MicroBatch(self._batch, 1 / passes, number % passes == passes - 1)

    def stats(self) -> LoaderStats:
        return self._assembly.train.stats()
