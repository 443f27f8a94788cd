"""Measure the ranks of a run: all of them take training steps together.

The Trainer's `RankWatch` compares them.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from framework.commands.diagnose.measure_parts import GRACE_S
from framework.commands.diagnose.measure_run import StepTimer, Through
from framework.config.training_parts import training_parts
from framework.contracts.batch import leaves
from framework.contracts.data import MicroBatch
from framework.diagnosis.facts import RankFacts
from framework.measure.host import threads_per_rank
from framework.parallel.batch_norm import is_synchronized
from framework.parallel.ddp import DistributedParallel
from framework.train.rank_watch import RankWatch
from framework.train.trainer import Trainer
from framework.trials.probe import Config, Probe

REPORT_EVERY = 10  # steps
FIRST_STEPS = 10  # that do not count, equally many on all ranks
LEAST_STEPS = 20  # that are measured, however long they take
MOST_STEPS = 2000  # whose sizes are kept
# Shares of the given seconds.
WHOLE = 0.6
UNSYNCED = 0.2


class _Steps(NamedTuple):
    """What one rank knows of some steps."""

    watch: RankWatch
    step_s: float  # mean seconds of a step
    sizes: list[float]  # numbers in each step's share of the batch
    synchronizes: bool  # whether batch norm does


def measure_ranks(config: Config, allowed: Sequence[str], seconds: float) -> RankFacts:
    """Measure the ranks for about ``seconds``. All ranks call it together, and get the facts."""
    torch.set_num_threads(threads_per_rank())
    config = {**config, "report_every": REPORT_EVERY, "clock": True}
    with closing(Probe(config, allowed, grace_s=GRACE_S)) as probe:
        parallel = probe.assembly.parallel
        whole = _steps(probe, WHOLE * seconds)
        unsynced_s = None
        if isinstance(parallel, DistributedParallel):
            parallel.syncs = False
            unsynced_s = _steps(probe, UNSYNCED * seconds).step_s
            parallel.syncs = True
        sizes = torch.tensor([0.0, *whole.sizes], dtype=torch.float64)
        step_work, rank_work = work_of(parallel.gather(sizes))
        ranks, steps = whole.watch.whole, whole.watch.steps
        text = "null"
        if ranks is not None and parallel.rank == 0:
            facts = RankFacts(
                num_ranks=ranks.num_ranks,
                num_steps=steps.num_steps,
                step_s=whole.step_s,
                spans=ranks.spans,
                late=ranks.late,
                exchange_share=steps.exchange_s / (steps.total_s or 1.0),
                waiting_share=steps.waiting_s / (steps.total_s or 1.0),
                step_work=step_work,
                rank_work=rank_work,
                unsynced_s=unsynced_s,
                sync_batch_norm=whole.synchronizes,
            )
            text = json.dumps(facts.as_dict())
        shared = parallel.gather(torch.tensor(list(text.encode()), dtype=torch.uint8))
        return RankFacts.of(json.loads(bytes(shared[0].tolist())))


def _steps(probe: Probe, seconds: float) -> _Steps:
    """Train for so many seconds after the first steps. All ranks stop after the same step."""
    sizes: list[float] = []
    timer = StepTimer(seconds, FIRST_STEPS, LEAST_STEPS, sizes.clear)
    parts = training_parts(probe.assembly, stop=timer)
    train = Through(parts.train, lambda batches: noted_sizes(batches, sizes))
    trainer = Trainer(replace(parts, train=train, val=None))
    timer.at_start.append(trainer.ranks.forget)
    trainer.fit()
    return _Steps(trainer.ranks, timer.step_s, sizes, is_synchronized(parts.model))


def noted_sizes(micro_batches: Iterator[MicroBatch], sizes: list[float]) -> Iterator[MicroBatch]:
    """Note the numbers in the share that this rank gets of each batch."""
    is_new, keeps = True, False
    for micro in micro_batches:
        if is_new:
            keeps = len(sizes) < MOST_STEPS
            sizes += [0.0] if keeps else []
        if keeps:
            sizes[-1] += sum(tensor.numel() for tensor in leaves(micro.batch))
        is_new = micro.last
        yield micro


def work_of(sizes: Sequence[Tensor]) -> tuple[float, float]:
    """Return the largest share of a batch over the mean one, step by step and over all steps.

    ``sizes`` holds a tensor for each rank: 0, and then the numbers in its share of each step.
    """
    num_steps = min(map(len, sizes))
    if num_steps == 1:
        return 1.0, 1.0
    numbers = torch.stack([own[1:num_steps] for own in sizes])  # [ranks, steps]
    step_work = (numbers.max(0).values / numbers.mean(0).clamp(min=1.0)).mean()
    means = numbers.mean(1)
    return float(step_work), float(means.max() / means.mean())
