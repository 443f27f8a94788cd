"""Evaluate a saved run on one or more sets of data, and draw what was wrong."""

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from framework.config import build, init_weights
from framework.config.input_source import as_pixels, class_name
from framework.config.saved_run import SavedRun, chosen_file, open_run
from framework.contracts import prediction, records, span
from framework.contracts.batch import move
from framework.contracts.class_labels import class_labels
from framework.contracts.data import MicroBatches, Source
from framework.contracts.loader import Clock, Loader
from framework.contracts.prediction import ClassProbabilities, PredictedMaps, Predictions, Predicts
from framework.errors import ResourceError, printable, say, words_of
from framework.measure.clock import make_clock
from framework.measure.host import threads_per_rank
from framework.media.decode import colored, data_uri, label_colors
from framework.system.durable import write_bytes, write_json, write_text
from framework.system.run_dir import redacted
from framework.system.user_code import needed
from framework.train.parts import GivenOutputs, OutputRecorder, evaluate, record_losses

if TYPE_CHECKING:
    from framework.train.torch_metrics import TorchMetrics

RESULT = "evaluation.json"
TEMPLATES = Path(__file__).parent / "templates"
MOST_CLASSES = 256  # of maps
MOST_NAMED = 40  # classes that get names on the axes
MOST_WRITTEN = 15  # classes whose counts are written into the squares
LONGEST = 18  # characters of a name
INCH_PER_CLASS = 0.32

Summary = dict[str, Any]
Say = Callable[[str], None]


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

    With the extra ``report`` there are pictures of the classes that are taken for each other, and
    a page of the worst records. Without it, a note says so.
    """
    leads = draws = os.environ.get("RANK", "0") == "0"

    def say_once(text: str) -> None:
        if leads:
            say(text, sys.stderr)

    try:
        needed("matplotlib", "report")
        needed("jinja2", "report")
    except ResourceError as error:
        say_once(f"note: no pictures and no page: {error.args[1]} {error.args[2]}; {error.args[3]}")
        draws = False
    torch.set_num_threads(threads_per_rank())
    start = time.perf_counter()
    files: list[str] = []
    shown: list[Any] = []  # of the page
    results: dict[str, Summary] = {}
    with closing(open_run(Path(job.run), allowed, job.weights, job.changes, say_once)) as run:
        init_weights.load_teacher(run.objective, say_once)
        metrics = build.make_metrics(run.config, run.allowed, run.parallel, say_once, run.classes)
        for name, part in run.sets(job.data, job.select, job.limit).items():
            with closing(run.open_set(part)) as source:
                results[name] = result = _evaluate_set(run, source, metrics, job.worst, say_once)
                result["data"] = part.given
                if draws and result["worst"]:
                    shown.append(shown_set(run, name, result, source))
            if draws and "confusion" in result:
                files.append(f"confusion{name.removeprefix('val')}.png")
                names = [figures["name"] for figures in result["classes"]]
                write_confusion(output / files[-1], result["confusion"], names)
        if run.parallel.rank != 0:
            return
        if shown:
            write_text(output / "worst.html", redacted(worst_page(shown, job.run, job.weights)))
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


def _evaluate_set(
    run: SavedRun, source: Source, metrics: "TorchMetrics | None", num_worst: int, say: Say
) -> Summary:
    clock: Clock = make_clock(run.device, run.config["clock"])
    model = OutputRecorder(run.model)
    worst = torch.empty(0, 2, dtype=torch.float64)
    watched = _Watched(run, run.loader(source, clock), model, clock, num_worst, worst)
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
        "spans": span.span_figures(clock.spans()),
    }
    mine = watched.confusion
    sizes = run.parallel.gather(torch.tensor([0 if mine is None else len(mine)]))
    if size := int(max(sizes)):
        if mine is None:  # this rank had fillers only
            mine = torch.zeros(size, size, dtype=torch.float64)
        total = run.parallel.total(mine.flatten()).view(size, size)
        confusion = trimmed(total, len(run.classes))
        summary["classes"] = class_figures(confusion, run.classes)
        summary["confusion"] = confusion.long().tolist()
    parts = [part.view(-1, 2) for part in run.parallel.gather(watched.worst.flatten())]
    summary["worst"] = [
        {"index": int(index), "key": source.key(int(index)), "loss": loss}
        for index, loss in _highest(torch.cat(parts), num_worst).tolist()
    ]
    return summary


@final
@dataclass
class _Watched:
    """A loader whose batches and outputs are looked at once the objective is done with them."""

    run: SavedRun
    loader: Loader
    model: OutputRecorder
    clock: Clock
    num_worst: int
    worst: Tensor  # index and loss, float64 [num, 2]
    extra_s: float = 0.0  # seconds that looking took
    failure: str = ""  # why losses of records are not known
    confusion: Tensor | None = None  # None if the predictions are no classes

    def epoch(self, epoch: int, start: int = 0) -> MicroBatches:
        """Count the classes of each batch, and keep the records with the highest losses."""
        objective = self.run.objective
        with closing(self.loader.epoch(epoch, start)) as batches:
            for micro in batches:
                self.model.outputs = []
                yield micro
                if micro.weight <= 0:  # a filler
                    continue
                began = time.perf_counter()
                batch = micro.batch
                with torch.no_grad(), self.run.precision.autocast():
                    target: Any = None
                    if isinstance(objective, Predicts):
                        target = batch.get(objective.target)
                    if isinstance(objective, Predicts) and isinstance(target, Tensor):
                        given = GivenOutputs(self.model.outputs, len(batch["index"]))
                        counts = counted(objective.predict(given, batch), target)
                        if counts is not None:
                            mine = self.confusion
                            self.confusion = counts if mine is None else mine + counts
                    if self.num_worst and not self.failure:
                        try:
                            losses = record_losses(objective, self.model.outputs, batch)
                        except Exception as error:  # noqa: BLE001  # it may need whole batches
                            self.failure = f"{type(error).__name__}: {words_of(error)}"
                        else:
                            rows = torch.stack([batch["index"].double().cpu(), losses], dim=1)
                            self.worst = _highest(torch.cat([self.worst, rows]), self.num_worst)
                self.extra_s += time.perf_counter() - began
                self.clock.skip()


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
        is_class &= truth != records.IGNORE
    places = truth[is_class] * num_classes + guess[is_class]
    counts = torch.bincount(places.flatten().cpu(), minlength=num_classes**2)
    return counts.view(num_classes, num_classes).double()


def trimmed(confusion: Tensor, num_named: int) -> Tensor:
    """Return the counts without the classes behind the last that has a name or occurs."""
    occurs = (confusion.sum(0) + confusion.sum(1)).nonzero().flatten().tolist()
    num_classes = max(num_named, 1 + max(occurs, default=-1))
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
        figures.append({"name": class_name(classes, number), "count": int(count), **row})
    return figures


def write_confusion(path: Path, confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> None:
    """Write a PNG of the counts, [C][C]: the truth by row, the guess by column."""
    # of an extra
    from matplotlib.figure import Figure  # noqa: PLC0415

    from framework.cli.pages import styled  # noqa: PLC0415

    counts = np.array(confusion, np.float64)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    number = len(counts)
    side = min(16.0, max(4.5, 2 + INCH_PER_CLASS * number))
    with styled():
        figure = Figure(figsize=(side + 1, side), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.grid(visible=False)
        picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        figure.colorbar(picture, label="share of the true class", fraction=0.046)
        axes.set(xlabel="predicted", ylabel="true")
        if number <= MOST_NAMED:
            names = [name if len(name) <= LONGEST else f"{name[:LONGEST]}…" for name in classes]
            axes.set_xticks(range(number), names, rotation=90)
            axes.set_yticks(range(number), names)
        if number <= MOST_WRITTEN:
            for row, column in zip(*counts.nonzero(), strict=True):
                color = "white" if shares[row, column] > 0.5 else "black"
                text = f"{counts[row, column]:.0f}"
                axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
        file = BytesIO()
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    write_bytes(path, file.getvalue())


def shown_set(run: SavedRun, name: str, summary: Summary, source: Source) -> dict[str, Any]:
    """Read the worst records of a set again, predict them, and draw them.

    Return what the page shows of the set: ``worst`` has the pictures of each record, as pairs of a
    field's name and a data URI, and what is known of it, as pairs of texts.
    """
    worst: list[dict[str, Any]] = []
    for record in summary["worst"]:
        facts = [("loss", f"{record['loss']:.4f}")]
        if record["key"]:
            facts.append(("key", printable(record["key"])))
        facts.append(("record", str(record["index"])))
        pictures: list[tuple[str, str]] = []
        worst.append({"pictures": pictures, "facts": facts})
        if not source.finds_records:
            continue
        batch = source.records(torch.tensor([record["index"]]))  # alone: images may differ in size
        maps = [name for name in source.manifest.label_maps if isinstance(batch[name], Tensor)]
        for field, values in colored(batch, maps).items():
            value = values[0] if isinstance(values, Tensor | list) and len(values) else None
            if not isinstance(value, Tensor) or value.dtype != torch.uint8:
                continue
            if value.dim() == 3 and value.shape[0] in (1, 3):
                pictures.append((field, data_uri(value.cpu().numpy())))
        if isinstance(run.objective, Predicts):
            predictions = run.predicted(run.finish(move(batch, run.device), 0))
            facts += _words(run.classes, predictions, batch.get(run.objective.target))
            pixels = None
            if isinstance(predictions, PredictedMaps):
                pixels = label_colors()[predictions.values[0].cpu().numpy().clip(0, 255)]
            elif isinstance(predictions, prediction.PredictedImages):
                pixels = as_pixels(predictions)[0]
            if pixels is not None:
                pictures.append(("predicted", data_uri(pixels.transpose(2, 0, 1))))
    return {
        "name": name,
        "data": printable(str(summary["data"])),
        "records": summary["records"],
        "means": [(key, f"{value:.4f}") for key, value in summary["means"].items()],
        "worst": worst,
    }


def _words(classes: Sequence[str], predictions: Predictions, target: Any) -> list[tuple[str, str]]:
    """Return what is right for the only record of a batch, and what is predicted."""
    words: list[tuple[str, str]] = []
    if isinstance(predictions, ClassProbabilities):
        if isinstance(target, Tensor) and not target[0].dim():
            words.append(("label", class_name(classes, int(target[0]))))
        probability, best = predictions.values[0].max(0)
        name = class_name(classes, int(best))
        words.append(("predicted", f"{name} ({float(probability):.3f})"))
    elif isinstance(predictions, prediction.PredictedTexts):
        if isinstance(target, list):
            words.append(("text", str(target[0])))
        words.append(("predicted", predictions.values[0]))
    elif isinstance(predictions, prediction.PredictedBoxes):
        words.append(("boxes", str(len(predictions.values[0].boxes))))
    return [(name, printable(text)) for name, text in words]


def worst_page(parts: Sequence[Mapping[str, Any]], run: str, weights: str) -> str:
    """Return the HTML of sets, as ``shown_set`` returns them."""
    from framework.cli.pages import rendered  # noqa: PLC0415  # of an extra

    known = {"run": printable(run), "weights": printable(weights)}
    known["written"] = time.strftime("%Y-%m-%d %H:%M")
    return rendered(TEMPLATES / "worst.html", parts=parts, **known)
