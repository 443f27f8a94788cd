"""What stands on the page beside the charts: names, cards, remarks and tables."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from framework.cli import tables as units
from framework.cli.run_records import UNKNOWN, chosen, varying
from framework.commands.report.recorded_runs import RecordedRun, RecordedSpan
from framework.contracts.span import ALL_SPANS, IDLE
from framework.measure.statistics import NO_CLAIM, claim, median, spread_share
from framework.system.run_dir import shown

MOST_METRICS = 4
NO_WORDS = ("true", "false", "null", "none")  # values that say nothing without their key
ABSENT = "not set"
MACHINE = "machine."  # begins the names of facts about it


class Difference(NamedTuple):
    """Every value of one key, with the numbers of the runs that have the value."""

    key: str
    values: list[tuple[str, list[int]]]


class Relative(NamedTuple):
    """Times per record relative to that of run ``base``; None if a rate is unknown."""

    base: int | None
    times: list[float | None]


class Card(NamedTuple):
    """One figure: a large ``value`` with a line of ``detail`` below it."""

    title: str
    value: str
    detail: str


class Remark(NamedTuple):
    """A text about some runs, with their numbers."""

    numbers: list[int]
    text: str


class TableCell(NamedTuple):
    """A cell: a text with small lines of details below it."""

    text: str
    sort: float | str | None = ""  # None: in the last rows; "": by the text
    details: tuple[str, ...] = ()
    mark: str = ""  # the style of the text


class Table(NamedTuple):
    """A table of the page. Its first two columns are the number and the name of each run."""

    name: str  # its id on the page
    title: str
    caption: str
    columns: Sequence[tuple[str, str]]  # (name, unit or "")
    rows: Sequence[Sequence[TableCell]]


Column = tuple[str, str, list[TableCell]]  # name, unit or "", a cell for each run


def labels(runs: Sequence[RecordedRun]) -> list[str]:
    """Return a unique name for each run: the choices that set it apart, else its directory."""
    keys = varying(runs)
    names: list[str] = []
    for run in runs:
        words: list[str] = []
        for key in keys:
            value = chosen(run, key)
            is_clear = value[:1].isalpha() and value not in NO_WORDS
            if value != UNKNOWN:
                words.append(value if is_clear else f"{key}={value}")
        names.append(" · ".join(words) or run.name)
    if keys:
        names = _unique(names, [f" ({run.name})" for run in runs])
    return _unique(names, [f" #{number}" for number in range(len(runs))])


def _unique(names: Sequence[str], endings: Sequence[str]) -> list[str]:
    """Add its ending to every name that occurs twice."""
    counts = Counter(names)
    pairs = zip(names, endings, strict=True)
    return [name + ending if counts[name] > 1 else name for name, ending in pairs]


def differences(tables: Sequence[Mapping[str, Any]], everything: bool = False) -> list[Difference]:
    """Return the keys that differ between ``tables`` of runs, or all. Empty tables are unknown."""
    result: list[Difference] = []
    for key in sorted({key for table in tables for key in table}):
        values: dict[str, list[int]] = {}
        for number, table in enumerate(tables):
            if table:
                values.setdefault(shown(table.get(key, ABSENT)), []).append(number)
        if everything or len(values) > 1:
            result.append(Difference(shown(key), list(values.items())))
    return result


def num_machines(runs: Sequence[RecordedRun]) -> int:
    """Return on how many machines runs were measured, of those that are known."""
    known = [run.facts.items() for run in runs if run.facts]
    return len({str([fact for fact in facts if fact[0].startswith(MACHINE)]) for facts in known})


def without_seed(run: RecordedRun) -> RecordedRun:
    """Return a run as if its seed had not been typed: runs that differ only in it are repeats."""
    return replace(run, choices={key: run.choices[key] for key in run.choices if key != "seed"})


def relative(runs: Sequence[RecordedRun], to: str) -> Relative:
    """Compare the times per record with the ``first`` run or the ``slowest`` one.

    If any run finished, one that finished is the base. Another part of training is not compared.
    Cells of one bench are compared round by round, since a slow minute slows all cells of a round.
    """
    known = {number: run.records_per_s for number, run in enumerate(runs) if run.records_per_s}
    eligible = [number for number in known if runs[number].is_whole] or list(known)
    if not eligible:
        return Relative(None, [None] * len(runs))
    number = eligible[0]
    if to == "slowest":
        number = min(eligible, key=lambda eligible_number: known[eligible_number])
    base = runs[number]
    times: list[float | None] = []
    for run in runs:
        rounds = run.rounds.keys() & base.rounds.keys()
        if run.what != base.what:
            times.append(None)
        elif rounds and run.place == base.place:
            times.append(median(base.rounds[shared] / run.rounds[shared] for shared in rounds))
        else:
            times.append(run.records_per_s and known[number] / run.records_per_s)
    return Relative(number, times)


def alike(runs: Sequence[RecordedRun]) -> list[list[int]]:
    """Group the numbers of runs whose training losses are equal at equal steps."""
    groups: dict[bytes, list[int]] = {}
    for number, run in enumerate(runs):
        curve = run.curves.get(("train", "loss"))
        if curve is not None and len(curve.values):
            groups.setdefault(curve.steps.tobytes() + curve.values.tobytes(), []).append(number)
    return list(groups.values())


def cards(runs: Sequence[RecordedRun], names: Sequence[str]) -> list[Card]:
    """Return the figures of a single run, or what sets several runs apart."""
    return list(_cards_of_one(runs[0]) if len(runs) == 1 else _cards_of_many(runs, names))


def _cards_of_one(run: RecordedRun) -> Iterator[Card]:
    steps, wall_s = run.figures.get("steps", 0), run.figures.get("wall_s")
    ended = f"{units.plain(steps)} steps in {units.seconds(wall_s)}"
    yield Card("Status", run.status, run.reason or ended)
    detail = "records per second"
    if run.spread:
        detail += f", {run.spread} between reports"
    yield Card("Speed", units.rate(run.records_per_s), detail)
    if run.wait_share is not None:
        yield Card(
            "Waiting for data",
            units.share(run.wait_share),
            f"of a step of {units.seconds(run.step_s)}",
        )
    if run.ranks and run.ranks.late:
        late = run.ranks.late
        lost = f"of the run lost by the others, in {late.span} of rank {late.rank}"
        yield Card("Waiting for a rank", units.share(late.lost_share), lost)
    for name, value in list(run.val.items())[:2]:
        yield Card(f"Validation {name}", units.plain(value), run.best_of(name))
    if "peak_rss_bytes" in run.figures:
        peak = units.size(run.figures["peak_rss_bytes"])
        yield Card("Memory", peak, "peak of the process on the host")


def _cards_of_many(runs: Sequence[RecordedRun], names: Sequence[str]) -> Iterator[Card]:
    counts = Counter(run.status for run in runs)
    what = {"cell": "Cells", "run": "Runs"}[runs[0].kind]
    yield Card(what, str(len(runs)), ", ".join(f"{n} {status}" for status, n in counts.items()))
    known = [run for run in runs if run.is_whole and run.records_per_s]
    if len(known) > 1 and len({run.what for run in known}) == 1 and num_machines(known) < 2:
        yield _speed_card(known)
    waits = [run.wait_share for run in runs if run.wait_share is not None and run.what == "train"]
    if waits:
        text = (
            f"of a step in the median run; {units.share(min(waits))} to {units.share(max(waits))}"
        )
        yield Card("Waiting for data", units.share(median(waits)), text)
    # Loaders and stores must not change the losses.
    groups = alike(runs)
    num_runs = sum(map(len, groups))
    if num_runs > 1 and len(groups) == 1:
        same = f"all {num_runs} runs have the same training losses, to the last bit"
        yield Card("Learned", "the same", same)
    elif num_runs > 1:
        if len(groups) < num_runs:
            different = f"{num_runs} runs have {len(groups)} different sequences of training losses"
            yield Card("Learned", f"{len(groups)} ways", different)
        losses: list[tuple[float, str]] = []
        for run, name in zip(runs, names, strict=True):
            means = (mean for key, mean in run.val.items() if key.rpartition(".")[2] == "loss")
            loss = next(means, math.nan)  # of the first validation set
            if math.isfinite(loss):
                losses.append((loss, name))
        if losses:
            loss, name = min(losses, key=itemgetter(0))
            yield Card("Lowest validation loss", units.plain(loss), name)


def _speed_card(runs: Sequence[RecordedRun]) -> Card:
    """Return the fastest choice if the test proves it, else that no difference can be claimed.

    Runs that differ only in their seed, and have the same code, are repeats of one choice. A sample
    of the test is a run, or a round of a bench: its rate, the cores that other programs kept busy,
    and when it began.
    """
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        code = {name: fact for name, fact in run.facts.items() if not name.startswith(MACHINE)}
        same = json.dumps([without_seed(run).choices, code], sort_keys=True, default=str)
        groups.setdefault(same, []).append(run)
    samples: list[list[tuple[float, float, float]]] = []
    for repeats in groups.values():
        samples.append([])
        for run in repeats:
            load = run.resources.get("usage.others_cpu_cores", 0.0)
            for per_s in list(run.rounds.values()) or [run.records_per_s or 0.0]:
                samples[-1].append((per_s, load, run.began_s))
    rates, loads, starts = ([[s[n] for s in each] for each in samples] for n in range(3))
    spread = max(map(spread_share, rates))
    repeated = f", repeats differ by \N{PLUS-MINUS SIGN} {units.share(spread)}" if spread else ""
    if len(groups) < 2:
        detail = f"records per second, median of {len(runs)} runs of one choice{repeated}"
        return Card("Speed", units.rate(median(run.records_per_s or 0.0 for run in runs)), detail)
    verdict = claim(rates, loads, starts)
    names = labels([without_seed(repeats[0]) for repeats in groups.values()])
    low, high = min(verdict.medians), max(verdict.medians)
    fast, slow = names[verdict.highest], names[verdict.medians.index(low)]
    if verdict.proved:
        detail = f"{units.rate(high)} records/s, {high / low:.2f} times the slowest, {slow}"
        return Card("Fastest", fast, f"{detail}{repeated} ({verdict.words})")
    detail = f"{units.rate(low)} to {units.rate(high)} records/s, the highest in {fast}"
    return Card("Speed", NO_CLAIM, f"{detail}{repeated} ({verdict.words})")


def remarks(runs: Sequence[RecordedRun]) -> list[Remark]:
    """Return why runs did not finish, their notes, and whether their times can be compared."""
    texts: list[tuple[str, int]] = []
    if (count := num_machines(runs)) > 1:
        what = (
            f"measured on {count} different machines: their times cannot be compared as they stand "
            "(see Machine below)"
        )
        texts += [(what, number) for number, run in enumerate(runs) if run.facts]
    for number, run in enumerate(runs):
        if run.reason:
            texts.append((f"{run.status}: {run.reason}", number))
        elif not run.is_whole:
            texts.append((run.status, number))
        if run.ranks and run.ranks.late:
            texts.append((run.ranks.late.words, number))
    texts += [(note, number) for number, run in enumerate(runs) for note in run.notes]
    return together(texts)


def together(texts: Iterable[tuple[str, int]]) -> list[Remark]:
    """Return each text once, with the numbers of the runs that have it."""
    numbers: dict[str, list[int]] = {}
    for text, number in texts:
        numbers.setdefault(text, []).append(number)
    return [Remark(of, text) for text, of in numbers.items()]


def machines(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Return the facts in plain words: ``machine.memory_bytes`` becomes memory, in GiB."""
    result: list[Difference] = []
    for key, values in differences([run.facts for run in runs], everything=True):
        name = key.removeprefix("machine.").removeprefix("versions.").removeprefix("num_")
        plain_values = values
        if name.endswith("_bytes"):
            plain_values = [(units.size(float(v)) if v.isdecimal() else v, of) for v, of in values]
        result.append(Difference(name.removesuffix("_bytes").replace("_", " "), plain_values))
    return result


def tables(runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative) -> list[Table]:
    """Return the tables that have a figure."""
    every = (
        runs_table(runs, names, compared),
        spans_table(runs, names),
        ranks_table(runs, names),
        _resources_table(runs, names),
    )
    return [table for table in every if table.rows]


def runs_table(runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative) -> Table:
    figures = [run.figures for run in runs]
    resources = [run.resources for run in runs]
    times_name = f"time, \N{MULTIPLICATION SIGN} #{compared.base}"
    columns: list[Column] = [
        ("status", "", [TableCell(run.status, mark=run.status) for run in runs]),
        ("records/s", "", [_figure(run.records_per_s, units.rate, run.spread) for run in runs]),
        (times_name, "", [_figure(time, units.times) for time in compared.times]),
        _measured(resources, "usage.others_cpu_cores", "other programs", "cores"),
        ("waiting", "", [_figure(run.wait_share, units.share) for run in runs]),
        ("step", "mean", [_figure(run.step_s, units.seconds) for run in runs]),
    ]
    for metric in list(dict.fromkeys(name for run in runs for name in run.val))[:MOST_METRICS]:
        cells = [_figure(run.val.get(metric), units.plain, run.best_of(metric)) for run in runs]
        columns.append((f"val {metric}", "", cells))
    columns += [
        _measured(figures, "steps", "steps"),
        _measured(figures, "repeats", "repeats"),
        _measured(figures, "wall_s", "wall time"),
        _measured(figures, "peak_rss_bytes", "memory", "host, peak"),
        _measured(figures, "peak_device_bytes", "memory", "device, peak"),
    ]
    caption = (
        "±: half the distance between the quartiles of the rates of its reports, windows or "
        "repeats, as a share of their median."
    )
    return _table("runs", "Runs", caption, names, columns)


def spans_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Return the seconds per step of each span."""

    def cell(span: RecordedSpan | None, run: RecordedRun) -> TableCell:
        if span is None:
            return TableCell(units.NONE, None)
        details = [units.share(span.mean_s / (run.step_s or 1.0))]
        if span.p50_s is not None:
            details.append(f"{units.seconds(span.p50_s)} | {units.seconds(span.p90_s)}")
        return _figure(span.mean_s, units.seconds, *details)

    spans = dict.fromkeys([IDLE, *ALL_SPANS, *(name for run in runs for name in run.spans)])
    columns = [
        *((name, "", [cell(run.spans.get(name), run) for run in runs]) for name in spans),
        ("step", "all", [_figure(run.step_s, units.seconds) for run in runs]),
        ("wait", "of the host, beside", [cell(run.beside.get("wait"), run) for run in runs]),
    ]
    caption = (
        "Mean per step; below it its share of the step, then the median | the 90th percentile, "
        "if they were kept."
    )
    return _table("spans", "Spans", caption, names, columns)


def ranks_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Return the seconds per step of each span on the slowest rank."""
    known = {number: run.ranks for number, run in enumerate(runs) if run.ranks}
    counts = [_figure(run.ranks and run.ranks.num_ranks, units.plain) for run in runs]
    columns: list[Column] = [("ranks", "", counts)]
    for name in dict.fromkeys(name for ranks in known.values() for name in ranks.spans):
        cells = [TableCell(units.NONE, None)] * len(runs)
        for number, ranks in known.items():
            if span := ranks.spans.get(name):
                others = f"{units.seconds(span.min_s)} | {units.seconds(span.median_s)}"
                cells[number] = _figure(span.max_s, units.seconds, f"rank {span.rank}", others)
        columns.append((name, "", cells))
    caption = (
        "Mean per step on the rank that took longest; below it this rank, then the least and the "
        "median of all ranks. exchange: it waited for other ranks, so the slowest rank has the "
        "shortest."
    )
    return _table("ranks", "Ranks", caption, names, columns)


def _resources_table(runs: Sequence[RecordedRun], names: Sequence[str]) -> Table:
    """Return the stages of reading and the use of the machine."""
    resources = [run.resources for run in runs]
    columns: list[Column] = []
    for key in dict.fromkeys(name for of in resources for name, value in of.items() if value):
        name = key.removeprefix("stages_s.").removeprefix("usage.")
        name = name.removesuffix("_bytes").removesuffix("_share")
        columns.append(_measured(resources, key, name.replace("_", " ").replace(".", " ")))
    caption = "Stages are in thread-seconds: two threads that read for a second make two."
    return _table("resources", "Stages and use of the machine", caption, names, columns)


def _table(
    name: str, title: str, caption: str, names: Sequence[str], columns: Sequence[Column]
) -> Table:
    """Leave out columns in which no run has a figure, and all rows if no column is left."""
    known = [column for column in columns if any(cell.sort is not None for cell in column[2])]
    heads = [("#", ""), ("run", ""), *((head, unit) for head, unit, _ in known)]
    if not known:
        names = []
    rows: list[list[TableCell]] = []
    for number, run_name in enumerate(names):
        cells = [cells[number] for _, _, cells in known]
        rows.append([TableCell(str(number), float(number)), TableCell(run_name), *cells])
    return Table(name, title, caption, heads, rows)


def _figure(value: float | None, word: Callable[[Any], str], *details: str) -> TableCell:
    is_known = value is not None and math.isfinite(value)
    return TableCell(word(value), value if is_known else None, tuple(filter(None, details)))


def _measured(tables: Sequence[Mapping[str, float]], key: str, name: str, unit: str = "") -> Column:
    return name, unit, [_figure(table.get(key), partial(units.measured, key)) for table in tables]
