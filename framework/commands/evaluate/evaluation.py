"""Evaluate a saved run on one or more sets of data, by one rank of several, or alone."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from framework.config.build import make_metrics
from framework.config.init_weights import load_teacher
from framework.config.saved_run import SavedRun, chosen_file, open_run
from framework.contracts.class_labels import class_labels
from framework.contracts.data import MicroBatch, MicroBatches, Source
from framework.contracts.loader import Clock, Loader
from framework.contracts.prediction import ClassProbabilities, PredictedMaps, Predictions, Predicts
from framework.contracts.records import IGNORE
from framework.contracts.training import PredictionMetrics
from framework.errors import ResourceError, say, words_of
from framework.measure.clock import make_clock
from framework.measure.host import threads_per_rank
from framework.run import span_figures
from framework.system.durable import write_json, write_text
from framework.system.run_dir import redacted
from framework.system.user_code import needed
from framework.train.parts import GivenOutputs, OutputRecorder, evaluate, record_losses

RESULT = "evaluation.json"
MOST_CLASSES = 256  # of maps

Summary = dict[str, Any]


class EvaluationJob(NamedTuple):
    """What to evaluate. JSON can carry it to other ranks."""

    run: str  # the directory of the run
    weights: str  # best, last, average or a file
    changes: dict[str, Any]  # keys and blocks that replace those of the run
    data: Any  # what ``data.val`` is, or None for the run's own
    select: str | None  # what records of ``data`` must fulfil
    limit: int | None  # how many records of ``data`` are used
    worst: int  # how many records with the highest loss to find


def write_evaluation(job: EvaluationJob, allowed: tuple[str, ...], output: Path) -> None:
    """Evaluate one rank's share of each set. Rank 0 writes the results of all into ``output``.

    Without the extra ``report`` there are no pictures and no page, and a note says so.
    """

    def say_once(text: str) -> None:
        if os.environ.get("RANK", "0") == "0":
            say(text, sys.stderr)

    try:
        needed("matplotlib", "report")
        needed("jinja2", "report")
        from framework.commands.evaluate import evaluation_pages as pages  # noqa: PLC0415
    except ResourceError as error:
        say_once(f"note: no pictures and no page: {error.args[1]} {error.args[2]}; {error.args[3]}")
        pages = None
    torch.set_num_threads(threads_per_rank())
    start = time.perf_counter()
    files: list[str] = []
    shown: list[Any] = []  # of the page
    results: dict[str, Summary] = {}
    run = open_run(Path(job.run), allowed, job.weights, job.changes, say_once)
    try:
        is_first = run.parallel.rank == 0
        load_teacher(run.objective)
        metrics = make_metrics(run.config, run.allowed, run.parallel, say_once, run.classes)
        for name, part in run.sets(job.data, job.select, job.limit).items():
            with closing(run.open_set(part)) as source:
                results[name] = result = _evaluate_set(run, source, metrics, job.worst, say_once)
                result["data"] = part.given
                if is_first and pages is not None and result["worst"]:
                    shown.append(pages.shown_set(run, name, result, source))
            if is_first and pages is not None and "confusion" in result:
                files.append(f"confusion{name.removeprefix('val')}.png")
                names = [figures["name"] for figures in result["classes"]]
                pages.write_confusion(output / files[-1], result["confusion"], names)
        if not is_first:
            return
        if pages is not None and shown:
            page = pages.worst_page(shown, job.run, job.weights)
            write_text(output / "worst.html", redacted(page))
            files.append("worst.html")
        summary = {
            "run": str(Path(job.run).resolve()),
            "weights": job.weights,
            "weights_file": str(chosen_file(run.run_dir, job.weights)),
            "ranks": run.parallel.world_size,
            "device": str(run.device),
            "sets": results,
            "wall_s": time.perf_counter() - start,
            "files": files,
        }
        write_json(output / RESULT, redacted(summary))
    finally:
        run.close()


def _evaluate_set(
    run: SavedRun,
    source: Source,
    metrics: PredictionMetrics | None,
    num_worst: int,
    say: Callable[[str], None],
) -> Summary:
    clock: Clock = make_clock(run.device, run.config["clock"])
    model = OutputRecorder(run.model)
    watched = _Watched(run, run.loader(source, clock), model, clock, num_worst)
    start = time.perf_counter()
    means, count, arrays = evaluate(
        model, watched.epoch(0), run.objective, run.precision, clock, run.parallel, metrics
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
        summary["classes"] = class_figures(confusion, run.classes)
        summary["confusion"] = confusion.long().tolist()
    parts = [part.view(-1, 2) for part in run.parallel.gather(watched.worst.flatten())]
    summary["worst"] = [
        {"index": int(index), "key": source.key(int(index)), "loss": loss}
        for index, loss in _highest(torch.cat(parts), num_worst).tolist()
    ]
    return summary


@final
class _Watched:
    """A loader whose batches and outputs are looked at once the objective is done with them."""

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
        self.worst = torch.empty(0, 2, dtype=torch.float64)  # index and loss
        self._confusion: Tensor | None = None

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        with closing(self.loader.epoch(epoch, start)) as batches:
            for micro in batches:
                self.model.outputs = []
                yield micro
                if micro.weight > 0:  # no filler
                    began = time.perf_counter()
                    with torch.no_grad(), self.run.precision.autocast():
                        self._count_classes(micro)
                        if self.num_worst and not self.failure:
                            self._find_worst(micro)
                    self.extra_s += time.perf_counter() - began
                    self.clock.skip()

    def _count_classes(self, micro: MicroBatch) -> None:
        objective = self.run.objective
        if isinstance(objective, Predicts):
            target = micro.batch.get(objective.target)
            given = GivenOutputs(self.model.outputs, len(micro.batch["index"]))
            if not isinstance(target, Tensor):
                return
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
        self.worst = _highest(torch.cat([self.worst, rows]), self.num_worst)

    def total_confusion(self) -> Tensor | None:
        """Return the counts over all ranks, or None if the predictions are no classes."""
        parallel = self.run.parallel
        mine = self._confusion
        sizes = parallel.gather(torch.tensor([0 if mine is None else len(mine)]))
        size = max(int(part) for part in sizes)
        if not size:
            return None
        if mine is None:  # this rank had fillers only
            mine = torch.zeros(size, size, dtype=torch.float64)
        return parallel.total(mine.flatten()).view(size, size)


def _highest(rows: Tensor, count: int) -> Tensor:
    """Return the rows (index, loss) with the highest loss, and of equal ones the first."""
    rows = rows[rows[:, 0].argsort(stable=True)]
    return rows[rows[:, 1].argsort(descending=True, stable=True)][:count]


def counted(predictions: Predictions, target: Tensor) -> Tensor | None:
    """Return how many records, or pixels, of each class have each guess: float64 [C, C].

    C is the number of classes; of maps ``MOST_CLASSES``. None if predictions are no classes, or the
    target holds no class numbers (``class_labels``) or shares of classes, [B, C]. Pixels of
    ``IGNORE`` and numbers outside of the classes do not count.
    """
    if isinstance(predictions, ClassProbabilities):
        guess = predictions.values.argmax(1)
        num_classes = predictions.values.shape[1]
        if target.is_floating_point() and target.shape == predictions.values.shape:
            target = target.argmax(1)
    elif isinstance(predictions, PredictedMaps):
        guess = predictions.values.long()
        num_classes = MOST_CLASSES
    else:
        return None
    truth = class_labels(target, guess.dim())
    if truth.is_floating_point() or truth.shape != guess.shape:
        return None
    is_class = (truth >= 0) & (truth < num_classes) & (guess < num_classes)
    if isinstance(predictions, PredictedMaps):
        is_class &= truth != IGNORE
    places = truth[is_class] * num_classes + guess[is_class]
    counts = torch.bincount(places.flatten().cpu(), minlength=num_classes**2)
    return counts.view(num_classes, num_classes).double()


def trimmed(confusion: Tensor, num_named: int) -> Tensor:
    """Return the counts without the classes behind the last that has a name or occurs."""
    occurs = (confusion.sum(0) + confusion.sum(1)).nonzero()
    num_used = int(occurs.max()) + 1 if len(occurs) else 0
    num_classes = max(num_named, num_used)
    return confusion[:num_classes, :num_classes]


def class_figures(confusion: Tensor, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return the figures of each class from [C, C]: the truth by row, the guess by column.

    ``count`` is how many records or pixels are of the class. A share without a whole is None.
    """
    sums = torch.stack([confusion.diag(), confusion.sum(1), confusion.sum(0)], 1).double()
    figures: list[dict[str, Any]] = []
    for number, (right, count, guesses) in enumerate(sums.tolist()):
        shares = {
            "precision": (right, guesses),
            "recall": (right, count),
            "f1": (2 * right, count + guesses),
            "iou": (right, count + guesses - right),
        }
        row = {name: part / whole if whole else None for name, (part, whole) in shares.items()}
        name = classes[number] if number < len(classes) else str(number)
        figures.append({"name": name, "count": int(count), **row})
    return figures
