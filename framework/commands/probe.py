"""How fast the parts of a configured run are, alone and together: what bench, tune and diagnose measure with.

Every rate is told by windows of equal time after a burn-in, so that its spread is known. Nothing is written: no sinks, checkpoints or
validation. One Probe holds one Assembly; make a new one for another configuration.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, final

import torch

from framework.config.assemble import Assembly, assemble
from framework.config.training_parts import training_parts
from framework.contracts.batch import Batch, taken
from framework.contracts.data import MicroBatch, MicroBatches
from framework.contracts.loader import Loader, LoaderStats
from framework.data.source import StoreSource
from framework.loader.prefetch import PrefetchLoader
from framework.loader.stream import StreamLoader
from framework.measure.statistics import spread_share
from framework.train.trainer import Trainer

Config = dict[str, Any]
NUM_WINDOWS = 8
ENDLESS = 1 << 40  # epochs
QUEUED = (
    PrefetchLoader,
    StreamLoader,
)  # by type: a user's loader may use the same names for something else


@dataclass(frozen=True)
class Rate:
    """``windows``: records per second in each window of time; ``spans_s``: seconds per step and span over all of them; ``busy_cores``:
    CPU seconds of this process (worker processes apart) per second of the windows.
    """

    windows: tuple[float, ...]
    spans_s: dict[str, float]
    busy_cores: float = 0.0

    @property
    def records_per_s(self) -> float:
        """The mean of all windows, which are of equal time: within an epoch records come in a burst, then in none while the next one begins,
        and the median window would tell of the burst alone.
        """
        return fmean(self.windows)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, as a share of the median."""
        return spread_share(self.windows)


@final
class Windows:
    """Counts records, and tells when ``burn_in_s`` and then ``seconds`` are over. The device has done what is counted.

    ``ahead``: batches that may lie ready at the start; counting begins when twice as many are taken, or half of ``seconds`` later than it
    would: while processes start, nothing comes, and then all that they read ahead at once, which is no rate. ``ready``: batches that lie
    ready now; by how many they become fewer while it is counted is what was lived on, not earned, and is left out.
    ``limit_s``: where steps are longer than windows, the windows that are there so long after the start, one at least, will do.
    ``period``: steps of an epoch. A window that has seen half of one goes on until it has seen whole ones: in an epoch of few steps the first
    wait, and the last compute alone, and a part of it tells of the one or the other.
    """

    def __init__(
        self,
        seconds: float,
        burn_in_s: float,
        device: torch.device,
        num_windows: int = NUM_WINDOWS,
        limit_s: float = math.inf,
        ahead: int = 0,
        ready: Callable[[], int] = int,
        period: int = 1,
    ) -> None:
        self.period = period
        self.length_s, self.num_windows, self.device = seconds / num_windows, num_windows, device
        self.rates: list[float] = []
        self.busy_cores = 0.0
        self._count, self._left = 0, 2 * ahead
        self._start = time.perf_counter()
        self._latest = self._start + burn_in_s + seconds / 2
        self._end, self._limit = self._start + burn_in_s, self._start + limit_s
        self._warm, self._warm_at, self._cpu_s = False, 0.0, 0.0
        self._ready, self._num_ready, self._num_steps, self._num_records = ready, 0, 0, 0

    def count(self, num_records: int) -> bool:
        """After each batch or step. True: all windows are full."""
        self._count += num_records
        self._num_steps += 1
        self._left -= 1
        now = time.perf_counter()
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
            self._cpu_s, self._warm_at, self._num_ready, self._num_steps = (
                time.process_time(),
                now,
                self._ready(),
                0,
            )
        self._warm, self._count, self._start, self._end = True, 0, now, now + self.length_s
        return len(self.rates) == self.num_windows or (now > self._limit and bool(self.rates))

    def rate(self, spans_s: dict[str, float]) -> Rate:
        """What was counted, once all windows are full."""
        used_up = (
            max(0, self._num_ready - self._ready()) * self._num_records / max(1, self._num_steps)
        )
        per_s = min(used_up, self._num_records / 2) / (
            self._start - self._warm_at
        )  # of a few steps nothing might be left
        return Rate(tuple(rate - per_s for rate in self.rates), spans_s, self.busy_cores)


@final
class Probe:
    """The parts of ``config`` (plain values, resolved), ready to be measured. ``allowed``: the user's packages.

    ``num_windows``: of every measurement; ``grace_s``: how long one may take beyond its time, where steps are slow.
    """

    def __init__(
        self,
        config: Config,
        allowed: Sequence[str],
        num_windows: int = NUM_WINDOWS,
        grace_s: float = math.inf,
    ) -> None:
        self.num_windows, self.grace_s = num_windows, grace_s
        quiet = {
            "sink": {},
            "resume": {"run": None, "auto": False, "allow": []},
            "max_steps": None,
            "validate_every": None,
            "epochs": ENDLESS,
        }
        verify = (
            "always" if config["verify"] == "always" else "off"
        )  # as in all epochs but the first
        self.config: Config = {
            **config,
            **quiet,
            "verify": verify,
            "data": {**config["data"], "val": None},
        }
        self.assembly = assemble(self.config, allowed)

    def loader(self, seconds: float, burn_in_s: float = 0.5) -> Rate:
        """Device batches taken as fast as they come."""
        windows = self._windows(seconds, burn_in_s, self.assembly.device, self.ahead)
        clock, num_batches = self.assembly.clock, 0
        clock.skip()
        clock.lap()
        for epoch in range(ENDLESS):
            with closing(self.assembly.train.epoch(epoch)) as batches:
                for batch, _, _ in batches:
                    num_batches += 1
                    if windows.count(len(batch["index"])):
                        return windows.rate(_per_step(clock.lap(), num_batches))
        raise AssertionError

    def host(self, seconds: float, burn_in_s: float = 0.5) -> Rate:
        """Host batches of the source alone: no loader, no copy, no augment."""
        windows = self._windows(seconds, burn_in_s, torch.device("cpu"), self.ahead)
        for epoch in range(ENDLESS):
            with closing(self.assembly.train_source.batches(epoch)) as batches:
                for batch, _, _ in batches:
                    if windows.count(len(batch["index"])):
                        return windows.rate({})
        raise AssertionError

    def train(self, seconds: float, burn_in_s: float = 1.0) -> Rate:
        """Whole training steps."""
        return self._steps(self.assembly.train, seconds, burn_in_s)

    def compute(
        self, seconds: float, burn_in_s: float = 1.0, num_records: int | None = None
    ) -> Rate:
        """Training steps on one batch for ever: what is left when no step waits for data. ``num_records``: on so many of it only."""
        batch = self.batch()
        if num_records is not None:
            batch = taken(batch, torch.arange(min(num_records, len(batch["index"]))))
        return self._steps(_OneBatch(batch, self.assembly), seconds, burn_in_s)

    def batch(self) -> Batch:
        """The first device batch."""
        with closing(self.assembly.train.epoch(0)) as batches:
            return next(batches).batch

    def _steps(self, loader: Loader, seconds: float, burn_in_s: float) -> Rate:
        counted = _Counted(loader)
        parts = training_parts(self.assembly, stop=lambda: windows.count(counted.take()))
        trainer = Trainer(replace(parts, train=counted, val=None))
        # last: its time runs from here, and making the trainer is no burn-in
        windows = self._windows(
            seconds,
            burn_in_s,
            self.assembly.device,
            self.ahead if loader is self.assembly.train else 0,
        )
        trainer.fit()
        return windows.rate(_per_step(trainer.spans_s, trainer.progress.step))

    def _windows(
        self, seconds: float, burn_in_s: float, device: torch.device, ahead: int
    ) -> Windows:
        limit_s = 1.5 * seconds + burn_in_s + self.grace_s
        return Windows(
            seconds,
            burn_in_s,
            device,
            self.num_windows,
            limit_s,
            ahead,
            self.ready if ahead else int,
        )

    @property
    def ahead(self) -> int:
        """Batches that may lie ready before a step: what the source and the loader read ahead."""
        source, loader = self.assembly.train_source, self.assembly.train
        of_source = source.num_ahead if isinstance(source, StoreSource) else 0
        return of_source + (loader.depth if isinstance(loader, QUEUED) else 0)

    def ready(self) -> int:
        """Batches that lie ready in the loader."""
        loader = self.assembly.train
        return loader.num_ready if isinstance(loader, QUEUED) else 0

    def close(self) -> None:
        self.assembly.close()


def measured(config: Config, allowed: Sequence[str], measure: Callable[[Probe], Rate]) -> Rate:
    """``measure`` over a Probe of ``config``, closed afterwards."""
    probe = Probe(config, allowed)
    try:
        return measure(probe)
    finally:
        probe.close()


def _per_step(spans_s: dict[str, float], num_steps: int) -> dict[str, float]:
    return {name: seconds / num_steps for name, seconds in spans_s.items()}


@final
class _Counted:
    """A Loader that counts the records it gave."""

    def __init__(self, loader: Loader) -> None:
        self._loader, self._count = loader, 0
        self.num_steps, self.identity, self.notes = loader.num_steps, loader.identity, loader.notes

    def take(self) -> int:
        """Records since it was asked last."""
        count, self._count = self._count, 0
        return count

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with closing(self._loader.epoch(epoch, start)) as micro_batches:
            for micro in micro_batches:
                self._count += len(micro.batch["index"])
                yield micro

    def stats(self) -> LoaderStats:
        return self._loader.stats()

    def close(self) -> None:
        self._loader.close()


@final
class _OneBatch:
    """A Loader that gives the same device batch at every step."""

    def __init__(self, batch: Batch, assembly: Assembly) -> None:
        self._batch, self._clock, self._passes = (
            batch,
            assembly.clock,
            assembly.config["accumulate"],
        )
        self.num_steps, self.identity = assembly.train.num_steps, assembly.train.identity
        self.notes: tuple[str, ...] = ()

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        for _ in range(start, self.num_steps):
            for number in range(self._passes):
                self._clock.mark("wait")
                self._clock.mark("copy")
                yield MicroBatch(self._batch, 1 / self._passes, number == self._passes - 1)

    def stats(self) -> LoaderStats:
        return LoaderStats({}, None, 0)

    def close(self) -> None:
        pass
