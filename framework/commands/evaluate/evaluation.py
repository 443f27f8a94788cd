"""Evaluate a saved run on one or more sets of data, by one rank of several, or alone."""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from framework.commands.evaluate.confusion import class_figures, counted, trimmed
from framework.config.run_watchers import make_metrics
from framework.config.saved_run import SavedRun, chosen_file, open_run
from framework.config.teacher_weights import load_teacher
from framework.contracts.data import MicroBatch, MicroBatches, Source, record_key
from framework.contracts.loader import Clock, Loader
from framework.contracts.prediction import Predicts
from framework.contracts.training import PredictionMetrics
from framework.errors import words_of
from framework.measure.clock import make_clock
from framework.measure.host import threads_per_rank
from framework.run import span_figures
from framework.train.record_losses import GivenOutputs, OutputRecorder, record_losses
from framework.train.validate import evaluate

Summary = dict[str, Any]


class EvaluationJob(NamedTuple):
    """What to evaluate. JSON can carry it to other ranks.

    Attributes:
        run: The directory of the run.
        weights: ``best``, ``last``, ``average`` or a file.
        changes: Keys and blocks that replace those of the run.
        data: What ``data.val`` is, or None for the run's own.
        select: What records of ``data`` must fulfil, or None.
        limit: How many records of ``data`` are used, or None for all.
        worst: How many records with the highest loss to find.
    """

    run: str
    weights: str
    changes: dict[str, Any]
    data: Any
    select: str | None
    limit: int | None
    worst: int


@dataclass(frozen=True)
class WorstRecord:
    """A record with a high loss: its number in the data, and the loss."""

    index: int
    loss: float


class SetResult(NamedTuple):
    """The result of one set of data.

    Attributes:
        summary: What ``evaluation.json`` holds of it.
        source: The data, still open, to show its worst records.
        worst: The records with the highest loss, the worst first.
    """

    summary: Summary
    source: Source
    worst: list[WorstRecord]


# (run, name of the set, its result): called by rank 0 while the data is open
Show = Callable[[SavedRun, str, SetResult], None]


def evaluate_run(
    job: EvaluationJob, allowed: tuple[str, ...], say: Callable[[str], None], show: Show
) -> Summary | None:
    """Evaluate one rank's share of each set. Return the results of all ranks, or None on others.

    Args:
        job: What to evaluate.
        allowed: Prefixes of the user's packages.
        say: Prints a note. Only rank 0 prints.
        show: Called by rank 0 for each set.
    """
    torch.set_num_threads(threads_per_rank())
    start = time.perf_counter()
    run = open_run(Path(job.run), allowed, job.weights, job.changes, say)
    try:
        load_teacher(run.objective)
        metrics = make_metrics(run.config, run.allowed, run.parallel, say, run.classes)
        sets = run.sets(job.data, job.select, job.limit)
        results: dict[str, Summary] = {}
        for name, part in sets.items():
            with closing(run.open_set(part)) as source:
                result = _evaluate_set(run, source, metrics, job.worst, say)
                result.summary["data"] = part.given
                results[name] = result.summary
                if run.parallel.rank == 0:
                    show(run, name, result)
        if run.parallel.rank != 0:
            return None
        return {
            "run": str(Path(job.run).resolve()),
            "weights": job.weights,
            "weights_file": str(chosen_file(run.run_dir, job.weights)),
            "ranks": run.parallel.world_size,
            "device": str(run.device),
            "sets": results,
            "wall_s": time.perf_counter() - start,
        }
    finally:
        run.close()


def _evaluate_set(
    run: SavedRun,
    source: Source,
    metrics: PredictionMetrics | None,
    num_worst: int,
    say: Callable[[str], None],
) -> SetResult:
    clock: Clock = make_clock(run.device, run.config["clock"])
    model = OutputRecorder(run.model)
    watched = _Watched(run, run.loader(source, clock), model, clock, num_worst)
    start = time.perf_counter()
    means, count, arrays = evaluate(
        model, watched, run.objective, run.precision, clock, run.parallel, metrics
    )
    wall_s = time.perf_counter() - start - watched.extra_s
    if watched.failure:
        say(f"note: the losses of single records are not known ({watched.failure})")
    summary: Summary = {
        "records": int(count),
        "digest": source.manifest.digest,
        "means": means,
        "arrays": {name: value.tolist() for name, value in arrays.items()},
        "records_per_s": count / wall_s,
        "wall_s": wall_s,
        "spans": span_figures(clock.spans()),
    }
    confusion = watched.total_confusion()
    if confusion is not None:
        confusion = trimmed(confusion, len(run.classes))
        summary["classes"] = [asdict(figures) for figures in class_figures(confusion, run.classes)]
        summary["confusion"] = confusion.long().tolist()
    worst = watched.worst_of_all_ranks()
    summary["worst"] = [
        {"index": record.index, "key": record_key(source, record.index), "loss": record.loss}
        for record in worst
    ]
    return SetResult(summary, source, worst)


@final
class _Watched:
    """A loader whose batches are looked at once the objective is done with them.

    The outputs of the model are there already, so that the model does not run again. What the
    evaluation itself computes stays as it is.
    """

    def __init__(
        self, run: SavedRun, loader: Loader, model: OutputRecorder, clock: Clock, num_worst: int
    ) -> None:
        self.run = run
        self.loader = loader
        self.model = model
        self.clock = clock
        self.num_worst = num_worst
        self.extra_s = 0.0  # seconds that looking took
        self.failure = ""  # why losses of records are not known
        self._confusion: Tensor | None = None
        self._worst = torch.empty(0, 2, dtype=torch.float64)  # index and loss

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with closing(self.loader.epoch(epoch, start)) as batches:
            for micro in batches:
                self.model.outputs = []
                yield micro
                if micro.weight > 0:  # no filler
                    self._look(micro)

    @torch.no_grad()
    def _look(self, micro: MicroBatch) -> None:
        start = time.perf_counter()
        with self.run.precision.autocast():
            self._count_classes(micro)
            if self.num_worst and not self.failure:
                self._find_worst(micro)
        self.extra_s += time.perf_counter() - start
        self.clock.skip()

    def _count_classes(self, micro: MicroBatch) -> None:
        objective = self.run.objective
        if not isinstance(objective, Predicts) or objective.target not in micro.batch:
            return
        target = micro.batch[objective.target]
        if not isinstance(target, Tensor):
            return
        given = GivenOutputs(self.model.outputs, len(micro.batch["index"]))
        counts = counted(objective.predict(given, micro.batch), target)
        if counts is not None:
            self._confusion = counts if self._confusion is None else self._confusion + counts

    def _find_worst(self, micro: MicroBatch) -> None:
        try:
            losses = record_losses(self.run.objective, self.model.outputs, micro.batch)
        except Exception as error:  # noqa: BLE001  # an objective of the user's may need whole batches
            self.failure = f"{type(error).__name__}: {words_of(error)}"
            return
        rows = torch.stack([micro.batch["index"].double().cpu(), losses], dim=1)
        self._worst = _highest(torch.cat([self._worst, rows]), self.num_worst)

    def total_confusion(self) -> Tensor | None:
        """Return the counts over all ranks, or None if the predictions are no classes."""
        parallel = self.run.parallel
        sizes = parallel.gather(
            torch.tensor([0 if self._confusion is None else len(self._confusion)])
        )
        size = max(int(part) for part in sizes)
        if not size:
            return None
        mine = self._confusion
        if mine is None:  # this rank had fillers only
            mine = torch.zeros(size, size, dtype=torch.float64)
        return parallel.total(mine.flatten()).view(size, size)

    def worst_of_all_ranks(self) -> list[WorstRecord]:
        parts = self.run.parallel.gather(self._worst.flatten())
        rows = _highest(torch.cat([part.view(-1, 2) for part in parts]), self.num_worst)
        return [WorstRecord(int(index), loss) for index, loss in rows.tolist()]


def _highest(rows: Tensor, count: int) -> Tensor:
    """Return the rows (index, loss) with the highest loss, and of equal ones the first."""
    rows = rows[rows[:, 0].argsort(stable=True)]
    return rows[rows[:, 1].argsort(descending=True, stable=True)][:count]
