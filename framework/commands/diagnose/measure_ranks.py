"""Measure a run of several ranks: start them here and on other hosts, or be one of them.

All ranks take training steps together, and the Trainer's `RankWatch` compares them.
"""

import sys

from framework.cli.start_rank import begin_rank

if __name__ == "__main__":  # signals get their meaning before anything large is imported
    begin_rank(sys.argv[1])

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path

import torch
from torch import Tensor

from framework.cli.allowed import find_packages
from framework.cli.outcome import RunOutcome
from framework.cli.progress import pack_missing
from framework.cli.run_ranks import RankedJob, launch_ranks, read_job, run_rank
from framework.commands.diagnose.measure_parts import GRACE_S
from framework.commands.diagnose.measure_step import StepTimer, Through
from framework.config.targets import check_targets
from framework.config.training_parts import training_parts
from framework.contracts.batch import leaves
from framework.contracts.data import MicroBatch
from framework.contracts.span import LateRank, RankSpan
from framework.diagnosis.facts import RankFacts
from framework.measure.host import threads_per_rank
from framework.parallel.batch_norm import is_synchronized
from framework.parallel.ddp import DistributedParallel
from framework.parallel.meeting import Meeting, parse_endpoint, share_text
from framework.system.durable import write_json
from framework.train.trainer import Trainer
from framework.trials.probe import Config, Probe

MODULE = "framework.commands.diagnose.measure_ranks"
FACTS = "ranks.json"
SECONDS = "seconds"  # the key in a job's configuration that says how long to measure
REPORT_EVERY = 10  # steps
FIRST_STEPS = 10  # that do not count, equally many on all ranks
LEAST_STEPS = 20  # that are measured, however long they take
# Shares of the given seconds.
WHOLE = 0.6
UNSYNCED = 0.2


class RanksFailed(Exception):
    """The ranks of a diagnosis ended with an error, which they have printed."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def measured_here(
    config: Config, allowed: tuple[str, ...], folder: Path, seconds: float
) -> RankFacts | None:
    """Start this host's ranks, and return what all ranks measured; None if another host leads.

    ``folder`` is an empty directory of this host.
    """
    parallel = config["parallel"]
    job = RankedJob({**config, SECONDS: seconds}, str(folder), allowed)
    meeting = None
    if parallel.get("num_nodes", 1) > 1:
        meeting = Meeting(parse_endpoint(parallel["endpoint"]), parallel["num_nodes"])
        if not meeting.leads:
            job = read_job(meeting.share(None))._replace(run_dir=str(folder), allowed=allowed)
            check_targets(job.config, allowed)
    pack_missing(job.config, job.allowed)
    file = folder / FACTS
    try:
        outcome = launch_ranks(job, meeting, MODULE)
        if outcome.code:
            raise RanksFailed(outcome)
        if meeting is not None and not meeting.leads:
            return None
        plain = json.loads(file.read_text(encoding="utf-8"))
        plain["spans"] = {name: RankSpan(*span) for name, span in plain["spans"].items()}
        plain["late"] = plain["late"] and LateRank(*plain["late"])
        return RankFacts(**plain)
    finally:
        file.unlink(missing_ok=True)


def measured_as_rank(job: RankedJob | None, seconds: float) -> RankFacts | None:
    """Measure as a rank of a launcher that is not ours. All but rank 0 give and get None."""
    if job is not None:
        pack_missing(job.config, job.allowed)
        job = job._replace(config={**job.config, SECONDS: seconds})
        share_text(job.as_text())
    else:
        job = read_job(share_text(None))
        find_packages(job.allowed)
    return measure_ranks(job)


def _measured(job: RankedJob) -> RunOutcome:
    facts = measure_ranks(job)
    if facts is not None:
        write_json(Path(job.run_dir, FACTS), asdict(facts))
    return RunOutcome(0, "measured")


def measure_ranks(job: RankedJob) -> RankFacts | None:
    """Measure the ranks, all of which call this together. Only rank 0 gets the facts."""
    torch.set_num_threads(threads_per_rank())
    config = {**job.config, "report_every": REPORT_EVERY, "clock": True}
    seconds = config.pop(SECONDS)
    with closing(Probe(config, job.allowed, grace_s=GRACE_S)) as probe:
        parallel = probe.assembly.parallel
        sizes: list[float] = []
        trainer, step_s = _train(probe, WHOLE * seconds, sizes)
        synchronizes = is_synchronized(trainer.parts.model)
        unsynced_s = None
        if isinstance(parallel, DistributedParallel):
            parallel.syncs = False
            _, unsynced_s = _train(probe, UNSYNCED * seconds, [])
            parallel.syncs = True
        numbers = torch.tensor([0.0, *sizes], dtype=torch.float64)
        step_work, rank_work = work_of(parallel.gather(numbers))
        ranks, steps = trainer.ranks.whole, trainer.ranks.steps
        if ranks is None or parallel.rank != 0:
            return None
        return RankFacts(
            num_ranks=ranks.num_ranks,
            num_steps=steps.num_steps,
            step_s=step_s,
            spans=ranks.spans,
            late=ranks.late,
            exchange_share=steps.exchange_s / (steps.total_s or 1.0),
            waiting_share=steps.waiting_s / (steps.total_s or 1.0),
            step_work=step_work,
            rank_work=rank_work,
            unsynced_s=unsynced_s,
            sync_batch_norm=synchronizes,
        )


def _train(probe: Probe, seconds: float, sizes: list[float]) -> tuple[Trainer, float]:
    """Train for so many seconds after the first steps; all ranks stop after the same step.

    Return the Trainer and the seconds of a mean step. ``sizes`` becomes this rank's shares.
    """
    timer = StepTimer(seconds, FIRST_STEPS, LEAST_STEPS)
    parts = training_parts(probe.assembly, stop=timer)
    train = Through(parts.train, lambda batches: noted_sizes(batches, sizes))
    trainer = Trainer(replace(parts, train=train, val=None))
    timer.at_start += [sizes.clear, trainer.ranks.restart]
    trainer.fit()
    return trainer, timer.step_s


def noted_sizes(micro_batches: Iterator[MicroBatch], sizes: list[float]) -> Iterator[MicroBatch]:
    """Note the numbers in the share that this rank gets of each batch."""
    is_new = True
    for micro in micro_batches:
        if is_new:
            sizes.append(0.0)
        sizes[-1] += sum(tensor.numel() for tensor in leaves(micro.batch))
        is_new = micro.last
        yield micro


def work_of(sizes: Sequence[Tensor]) -> tuple[float, float]:
    """Return the largest share of a batch over the mean one, step by step and over all steps.

    ``sizes`` holds for each rank 0 and the numbers in its share of each step.
    """
    num_steps = min(map(len, sizes))
    if num_steps == 1:
        return 1.0, 1.0
    numbers = torch.stack([own[1:num_steps] for own in sizes])  # [ranks, steps]
    step_work = (numbers.max(0).values / numbers.mean(0).clamp(min=1.0)).mean()
    means = numbers.mean(1)
    return float(step_work), float(means.max() / means.mean())


if __name__ == "__main__":
    run_rank(sys.argv[1], _measured)
