"""Read runs and the cells of benches: finished, failed, or killed in the middle of a line."""

import json
import math
import os
import re
import shlex
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median_high
from typing import Any, NamedTuple

import numpy as np

from framework.cli import run_records, tables
from framework.contracts import span
from framework.contracts.waits import slow_words
from framework.errors import CheckpointError, DataError, say, words_of
from framework.measure import statistics
from framework.system import run_dir
from framework.system.run_dir import shown

DAMAGE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


class RecordedSpan(NamedTuple):
    """Seconds per step: the mean, and the quantiles if the run kept them."""

    mean_s: float
    p50_s: float | None = None
    p90_s: float | None = None


class MetricCurve(NamedTuple):
    """One metric of one split, as float64 arrays of equal length."""

    steps: np.ndarray  # optimizer steps
    seconds: np.ndarray  # seconds of training up to each step; NaN if they are unknown
    values: np.ndarray


@dataclass(frozen=True)
class RecordedRun(run_records.ConfiguredRun):
    """One run, or one cell of a bench."""

    name: str  # of its directory or file
    place: str  # the path of its directory or file
    # or running, interrupted, failed, killed, damaged; of a cell: unfinished or impossible
    status: str = "finished"
    reason: str = ""  # why it did not finish
    kind: str = "run"  # or cell
    label: str = ""  # a name that no other run of the page has
    what: str = "train"  # or the part of training that a bench measured
    facts: Mapping[str, Any] = field(default_factory=dict)  # machine, versions, revision
    command: str = ""
    started: str = ""
    records_per_s: float | None = None
    rates: Sequence[float] = ()  # records per second of each report, window or repeat
    rounds: Mapping[int, float] = field(default_factory=dict)  # rates by the round of a bench
    # In the order of a step. On a device ``idle`` takes the place of the host's ``wait``, which
    # overlaps the device's work.
    spans: Mapping[str, RecordedSpan] = field(default_factory=dict)
    overlapped: Mapping[str, RecordedSpan] = field(default_factory=dict)
    curves: Mapping[tuple[str, str], MetricCurve] = field(default_factory=dict)  # (split, metric)
    # Means of the last validation; of several sets, their names begin with the set's and a dot.
    val: Mapping[str, float] = field(default_factory=dict)
    best: Mapping[str, float] = field(default_factory=dict)  # means of the best validation
    figures: Mapping[str, float] = field(default_factory=dict)  # names end with the unit
    resources: Mapping[str, float] = field(default_factory=dict)  # stages, use of the machine
    notes: Sequence[str] = ()
    ranks: span.RankReport | None = None  # None: one rank

    @property
    def is_whole(self) -> bool:
        """Whether the run reached its end, so that its figures can be compared."""
        return self.status == "finished"

    @property
    def step_s(self) -> float | None:
        return math.fsum(span.mean_s for span in self.spans.values()) or None

    @property
    def wait_share(self) -> float | None:
        """The share of a step without a batch; on a device the share that the device was idle."""
        return span.waiting_share({name: span.mean_s for name, span in self.spans.items()})

    @property
    def quartiles(self) -> tuple[float, float] | None:
        """The lower and upper quartile of the rates; None for fewer than 4."""
        if len(self.rates) < 4:
            return None
        low, _, high = statistics.quartiles(self.rates)
        return low, high

    @property
    def spread(self) -> str:
        """Half the distance between the quartiles as a share of the median, in words."""
        if len(self.rates) < 4:
            return ""
        return f"± {tables.share(statistics.spread_share(self.rates))}"

    def best_of(self, metric: str) -> str:
        """Return ``metric`` at the best validation in words; "" if the last one has the same."""
        best = self.best.get(metric)
        return "" if best in (None, self.val.get(metric)) else f"best {tables.plain(best)}"


class RelativeTimes(NamedTuple):
    """Times per record relative to that of run ``base``; None if a rate is unknown."""

    base: int | None
    times: list[float | None]


def relative_times(runs: Sequence[RecordedRun], to: str) -> RelativeTimes:
    """Compare the times per record with the ``first`` run or the ``slowest`` one.

    If any run finished, one that finished is the base. Another part of training is not compared.
    Cells of one bench are compared round by round, since a slow minute slows all cells of a round.
    """
    known = {number: run.records_per_s for number, run in enumerate(runs) if run.records_per_s}
    eligible = [number for number in known if runs[number].is_whole] or list(known)
    if not eligible:
        return RelativeTimes(None, [None] * len(runs))
    number = eligible[0]
    if to == "slowest":
        number = min(eligible, key=known.__getitem__)
    base = runs[number]
    times: list[float | None] = []
    for run in runs:
        rounds = run.rounds.keys() & base.rounds.keys()
        if run.what != base.what:
            times.append(None)
        elif rounds and run.place == base.place:
            ratios = [base.rounds[each] / run.rounds[each] for each in rounds]
            times.append(statistics.median(ratios))
        else:
            times.append(run.records_per_s and known[number] / run.records_per_s)
    return RelativeTimes(number, times)


def find_runs(paths: Sequence[str]) -> list[RecordedRun]:
    """Return the runs and cells of ``paths``, each once, sorted by name within each path.

    CheckpointError K126 for links. DataError D175 (no such path), D176 (no runs), D177 (no bench
    file), D178 (damaged). Below a folder, what cannot be read is left out with a note.
    """
    runs: list[RecordedRun] = []
    seen: set[Path] = set()
    for path in map(Path, paths):
        if not os.path.exists(path):  # Path.exists raises for a name that is too long
            fix = "name a run, a sweep, or a file of paceline bench"
            raise DataError(175, str(path), "no such file or directory", fix)
        if path.is_file() and not is_bench(path):
            fix = "name such a file, or the directory of a run or a sweep"
            raise DataError(177, str(path), "is not a file of paceline bench", fix)
        places = list(_places(path))
        new = [place for place in places if place.resolve() not in seen]
        seen.update(place.resolve() for place in new)
        added: list[RecordedRun] = []
        for place in new:
            try:
                added += [read_run(place)] if place.is_dir() else read_bench(place)
            except (CheckpointError, *DAMAGE) as error:
                refusal = error
                if not isinstance(error, CheckpointError):
                    what = f"is damaged ({type(error).__name__}: {words_of(error)})"
                    refusal = DataError(178, str(place), what, "leave it out of the report")
                if place == path:
                    raise refusal from error
                say(f"note: {place} is left out: {refusal}", sys.stderr)
        if not places or (path.is_file() and new and not added):
            fix = "name one, such as a directory below outputs"
            raise DataError(176, str(path), "contains no run, sweep or bench", fix)
        runs += added
    return runs


def _places(path: Path) -> Iterator[Path]:
    """Yield the runs and bench files at or below ``path``, not following links or entering runs."""

    def natural(name: str) -> list[tuple[int, str]]:  # puts 10 after 9
        parts = re.split(r"(\d+)", name)
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]

    if path.is_file() or run_dir.is_run(path):
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders.sort(key=natural)
        runs = [name for name in folders if run_dir.is_run(Path(folder, name))]
        yield from (Path(folder, name) for name in runs)
        for name in sorted(files, key=natural):
            if name.endswith(".jsonl") and is_bench(Path(folder, name)):
                yield Path(folder, name)
        folders[:] = [name for name in folders if name not in runs]


def is_bench(path: Path) -> bool:
    """Return whether ``path`` begins as a bench file does."""
    first: dict[str, Any] = {}
    with suppress(OSError), open(path, "rb") as file:
        first = run_dir.parsed(file.readline(1 << 20))
    return "cell" in first or ("machine" in first and "command" in first)


def read_run(path: Path) -> RecordedRun:
    """Read the directory of a run. Missing files leave defaults and a note."""
    run_dir.check_entry(path)
    record = run_records.read_record(path)
    summary, has_log = record.summary, run_dir.is_file(path / run_dir.REPORTS)
    metrics = Metrics()
    if has_log:
        metrics = read_metrics(path / run_dir.REPORTS, record.config.get("batch_size", math.nan))
    known = summary.get("spans", {}).items()
    spans = {name: RecordedSpan(s["mean_s"], s["p50_s"], s["p90_s"]) for name, s in known}
    val = run_dir.numbers(summary.get("val")) or {
        ".".join([*split.split(".")[1:], name]): float(curve.values[-1])
        for (split, name), curve in metrics.curves.items()
        if is_validation(split)
    }
    val.pop("step", None)
    of_run = ("steps", "epochs", "wall_s", "validate_s", "peak_rss_bytes", "peak_device_bytes")
    figures = run_dir.numbers({name: summary.get(name) for name in of_run})
    resources: dict[str, float] = {}
    for key in ("stages_s", "queue", "usage"):
        resources.update(run_dir.numbers(run_dir.flat(summary.get(key), f"{key}.")))
    rate = summary.get("records_per_s")
    if not rate and metrics.rates:
        rate = median_high(metrics.rates)
    reason = record.reason
    if record.status == "finished":
        reason = shown(summary.get("reason", ""))
    ranks = None
    if of_ranks := summary.get("ranks"):
        by_span = {shown(name): span.RankSpan(**own) for name, own in of_ranks["spans"].items()}
        late = of_ranks["late"] and span.LateRank(**of_ranks["late"])
        ranks = span.RankReport(of_ranks["num"], by_span, late)
    notes = run_dir.words(summary.get("notes"))
    if line := slow_words(summary.get("slow_records", {}), summary.get("train_s", 0.0)):
        notes.append(line)
    for decision in (summary.get("tuning") or {}).get("decisions", []):
        notes.append(f"after {decision['at_s']} s: {decision['text']}")
    if metrics.num_bad:
        notes.append(f"{metrics.num_bad:,} lines of metrics.jsonl are damaged and left out")
    if not has_log:
        notes.append("no metrics.jsonl: no curves")
    for name in run_dir.OBJECTS:
        if os.path.lexists(path / name) and not run_dir.read_object(path / name):
            notes.append(f"{name} cannot be read")
    return RecordedRun(
        record.name,
        status=record.status,
        reason=reason,
        choices=record.choices,
        config=record.config,
        started=record.started,
        records_per_s=rate or None,
        rates=metrics.rates,
        curves=metrics.curves,
        val=val,
        best=run_dir.numbers(summary.get("best")),
        figures={"steps": metrics.last_step, **figures},
        resources=resources,
        notes=list(map(shown, notes)),
        ranks=ranks,
        **_origin(path, record.facts),
        **_stacked(spans or metrics.spans),
    )


def _origin(path: Path, start: Mapping[str, Any]) -> dict[str, Any]:
    leaves = run_dir.flat({key: start.get(key) for key in ("machine", "versions", "git", "vars")})
    leaves["tags"] = ", ".join(map(shown, run_dir.words(start.get("tags"))))
    facts = {name: leaf for name, leaf in leaves.items() if leaf not in (None, "", [], {})}
    # To type again. The first word may hold the program and its command.
    program, *rest = run_dir.words(start.get("command")) or [""]
    command = " ".join([os.path.basename(program), *map(shlex.quote, rest)])
    return {"place": shown(str(path)), "facts": facts, "command": shown(command)}


def _stacked(spans: Mapping[str, RecordedSpan]) -> dict[str, Any]:
    ordered = {name: spans[name] for name in (span.IDLE, *span.ALL_SPANS, *spans) if name in spans}
    overlapped: dict[str, RecordedSpan] = {}
    if span.IDLE in ordered and "wait" in ordered:
        overlapped["wait"] = ordered.pop("wait")
    return {"spans": ordered, "overlapped": overlapped}


def is_validation(split: str) -> bool:
    """Return whether a split is the validation, or one of several validation sets."""
    return split.partition(".")[0] == "val"


class Metrics(NamedTuple):
    """The contents of a log. A run that is killed while it writes leaves one damaged line."""

    curves: Mapping[tuple[str, str], MetricCurve] = {}  # by (split, metric)
    rates: Sequence[float] = ()  # records per second of each training report
    spans: Mapping[str, RecordedSpan] = {}  # means over all training steps
    last_step: int = 0
    num_bad: int = 0  # damaged lines


def read_metrics(path: Path, batch_size: float = math.nan) -> Metrics:
    """Read a log. ``batch_size`` is for logs without spans."""
    points: dict[tuple[str, str], array[float]] = {}  # step, seconds, value; 24 bytes
    rates: list[float] = []
    totals_s: dict[str, float] = {}
    num_steps = last_step = num_bad = 0
    seconds = 0.0
    for line in run_dir.lines_of(path):
        step, split = line.get("step"), line.get("split")
        if not isinstance(step, int) or not isinstance(split, str):
            num_bad += 1
            continue
        values = run_dir.numbers({name: line[name] for name in run_records.means_of(line)})
        if split == "train":
            rate = _rate(line.get("records_per_s"))
            if rate is not None:
                rates.append(rate)
            spans_s = {n: line[f"{n}_s"] for n in (*span.ALL_SPANS, span.IDLE) if f"{n}_s" in line}
            num_new = step - last_step
            last_step = step
            if num_new > 0:  # a resumed run repeats steps, which are counted already
                num_steps += num_new
                for name, span_s in spans_s.items():
                    totals_s[name] = totals_s.get(name, 0.0) + num_new * span_s
                # On a device the host waits while the device works.
                of_step = [s for n, s in spans_s.items() if n != "wait" or span.IDLE not in spans_s]
                seconds += num_new * (math.fsum(of_step) or batch_size / (rate or math.nan))
        for name, value in values.items():
            points.setdefault((shown(split), name), array("d")).extend((step, seconds, value))
    curves: dict[tuple[str, str], MetricCurve] = {}
    for key, numbers_of in points.items():
        steps, at_s, means = np.frombuffer(numbers_of).reshape(-1, 3).T.copy()
        if not np.all(np.diff(steps) > 0):
            # A resumed run may report a step twice: the later line counts.
            _, last = np.unique(steps[::-1], return_index=True)
            kept = len(steps) - 1 - last
            steps, means = steps[kept], means[kept]
            at_s = np.maximum.accumulate(at_s[kept])
        curves[key] = MetricCurve(steps, at_s, means)
    spans = {name: RecordedSpan(total_s / num_steps) for name, total_s in totals_s.items()}
    return Metrics(curves, rates, spans, last_step, num_bad)


def _rate(value: Any) -> float | None:
    rate = run_dir.number(value)
    return rate if rate is not None and 0 < rate < 1e15 else None


def read_bench(path: Path) -> list[RecordedRun]:
    """Return the cells in the order of the grid, those that were not measured included."""
    lines = list(run_dir.lines_of(path))
    header = next((line for line in lines if line and "cell" not in line), {})
    notes: list[str] = []
    if header.get("what"):
        notes.append(f"bench what={shown(header['what'])}")
    if num_bad := lines.count({}):
        notes.append(f"{num_bad:,} lines of the file are damaged and left out")
    cells: dict[str, list[dict[str, Any]]] = {
        json.dumps(choice, sort_keys=True): [] for choice in header.get("cells", [])
    }
    for line in lines:
        if "cell" in line:
            cells.setdefault(json.dumps(line["cell"], sort_keys=True), []).append(line)
    runs: list[RecordedRun] = []
    for key, of_cell in cells.items():
        measured = [line for line in of_cell if _rate(line.get("records_per_s")) is not None]
        repeats = [line["records_per_s"] for line in measured]
        rates = repeats
        if len(repeats) < 4:  # too few for quartiles
            rates = [rate for line in measured for rate in line.get("windows", []) if _rate(rate)]
        illegal = [line["illegal"] for line in of_cell if line.get("illegal")]
        status, reason = "finished", ""
        if illegal:  # the combination cannot run
            status, reason = "impossible", shown(illegal[0])
        elif not of_cell:
            status, reason = "unfinished", "not measured: the bench was stopped, or is running"
        elif not repeats:
            status, reason = "failed", "no rate is recorded"
        known = [line["spans_s"] for line in of_cell if line.get("spans_s")]
        means = {
            shown(name): RecordedSpan(fmean(spans_s.get(name, 0.0) for spans_s in known))
            for name in dict.fromkeys(name for spans_s in known for name in spans_s)
        }
        places = [line.get("repeat", place) for place, line in enumerate(measured)]
        choice = json.loads(key).items()
        run = RecordedRun(
            name=shown(path.name),
            kind="cell",
            what=shown(header.get("what")),
            status=status,
            reason=reason,
            choices={shown(name): shown(value) for name, value in choice},
            config={shown(name): value for name, value in choice},
            started=shown(header.get("started", "")),
            records_per_s=statistics.median(repeats) if repeats else None,
            rates=rates or repeats,
            rounds=dict(zip(places, repeats, strict=True)),
            figures={"repeats": len(repeats)},
            notes=notes,
            **_origin(path, header),
            **_stacked(means),
        )
        runs.append(run)
    return runs
