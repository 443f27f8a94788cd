"""Measure the ranks of a run: all of them take training steps together."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, final

import torch
from torch import Tensor

from framework.commands.diagnose.measure_parts import GRACE_S, Setting
from framework.commands.diagnose.rank_facts import RankFacts
from framework.config.training_parts import training_parts
from framework.contracts.batch import Batch, leaves
from framework.contracts.data import MicroBatches
from framework.contracts.loader import Loader, LoaderStats
from framework.contracts.parallel import Parallel
from framework.measure.host import threads_per_rank
from framework.parallel.batch_norm import is_synchronized
from framework.parallel.ddp import DistributedParallel
from framework.train.trainer import Trainer
from framework.trials.probe import Probe

REPORT_EVERY = 10  # steps
FIRST_STEPS = 10  # that do not count, equally many on all ranks
LEAST_STEPS = 20  # that are measured, however long they take
MOST_STEPS = 2000  # whose sizes are kept
# Shares of the given seconds.
WHOLE = 0.6
UNSYNCED = 0.2


class _Steps(NamedTuple):
    """What one rank knows of some steps."""

    trainer: Trainer
    step_s: float  # mean seconds of a step
    sizes: list[float]  # numbers in each step's share of the batch
    synchronizes: bool  # whether batch norm does


def measure_ranks(setting: Setting, seconds: float) -> RankFacts:
    """Measure the ranks for about ``seconds``. All ranks call it together, and get the facts."""
    torch.set_num_threads(threads_per_rank())
    config = {**setting.config, "report_every": REPORT_EVERY, "clock": True}
    with closing(Probe(config, setting.allowed, grace_s=GRACE_S)) as probe:
        parallel = probe.assembly.parallel
        whole = _steps(probe, WHOLE * seconds)
        unsynced_s = None
        if isinstance(parallel, DistributedParallel):
            parallel.syncs = False
            unsynced_s = _steps(probe, UNSYNCED * seconds).step_s
            parallel.syncs = True
        step_work, rank_work = _work(whole.sizes, parallel)
        facts = None
        if parallel.rank == 0:
            facts = _facts(whole, unsynced_s, step_work, rank_work)
        return _shared(facts, parallel)


def _facts(
    whole: _Steps, unsynced_s: float | None, step_work: float, rank_work: float
) -> RankFacts:
    ranks, steps = whole.trainer.ranks.whole, whole.trainer.ranks.steps
    assert ranks is not None
    total_s = steps.total_s or 1.0
    return RankFacts(
        num_ranks=ranks.num_ranks,
        num_steps=steps.num_steps,
        step_s=whole.step_s,
        spans=ranks.spans,
        late=ranks.late,
        exchange_share=steps.exchange_s / total_s,
        waiting_share=steps.waiting_s / total_s,
        step_work=step_work,
        rank_work=rank_work,
        unsynced_s=unsynced_s,
        sync_batch_norm=whole.synchronizes,
    )


def _shared(facts: RankFacts | None, parallel: Parallel) -> RankFacts:
    """Return rank 0's facts on every rank."""
    text = json.dumps(facts and facts.as_dict())
    own = torch.tensor(list(text.encode()), dtype=torch.uint8)
    return RankFacts.of(json.loads(bytes(parallel.gather(own)[0].tolist())))


def _work(sizes: list[float], parallel: Parallel) -> tuple[float, float]:
    """Return the largest share of a batch over the mean one, step by step and over all steps."""
    every = parallel.gather(torch.tensor([0.0, *sizes], dtype=torch.float64))
    num_steps = min(map(len, every))
    numbers: Tensor = torch.stack([own[1:num_steps] for own in every])  # [ranks, steps]
    if num_steps == 1:
        return 1.0, 1.0
    step_work = (numbers.max(0).values / numbers.mean(0).clamp(min=1.0)).mean()
    means = numbers.mean(1)
    return float(step_work), float(means.max() / means.mean())


def _steps(probe: Probe, seconds: float) -> _Steps:
    """Train for so many seconds after the first steps. All ranks stop after the same step."""
    loader = _Sized(probe.assembly.train)
    timer = _Timer(seconds)
    parts = training_parts(probe.assembly, stop=timer)
    trainer = Trainer(replace(parts, train=loader, val=None))
    timer.at_start += [loader.sizes.clear, trainer.ranks.forget]
    trainer.fit()
    return _Steps(trainer, timer.step_s, loader.sizes, is_synchronized(parts.model))


@final
class _Timer:
    """Says when to stop, and measures the steps after the first ones."""

    def __init__(self, seconds: float) -> None:
        self.at_start: list[Callable[[], None]] = []  # called after the first steps
        self._seconds = seconds
        self._start_s = self._last_s = 0.0
        self._num_steps = -FIRST_STEPS  # that were measured

    @property
    def step_s(self) -> float:
        """Seconds of a mean step."""
        return (self._last_s - self._start_s) / self._num_steps

    def __call__(self) -> bool:
        """Count a step, and return whether it was the last one."""
        self._num_steps += 1
        self._last_s = time.perf_counter()
        if self._num_steps == 0:
            self._start_s = self._last_s
            for call in self.at_start:
                call()
        return self._num_steps >= LEAST_STEPS and self._last_s - self._start_s > self._seconds


@final
class _Sized:
    """A Loader that notes the numbers in the share that this rank gets of each batch."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self.sizes: list[float] = []
        self.num_steps = loader.num_steps
        self.identity = loader.identity
        self.notes = loader.notes

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        is_new = True
        with closing(self._loader.epoch(epoch, start)) as micro_batches:
            for micro in micro_batches:
                if len(self.sizes) < MOST_STEPS:
                    size = _size(micro.batch)
                    if is_new or not self.sizes:
                        self.sizes.append(size)
                    else:
                        self.sizes[-1] += size
                is_new = micro.last
                yield micro

    def stats(self) -> LoaderStats:
        return self._loader.stats()

    def close(self) -> None:
        self._loader.close()


def _size(batch: Batch) -> float:
    return float(sum(tensor.numel() for tensor in leaves(batch)))
