"""``paceline report DIR [DIR ...]``: write one page about runs, sweeps and benches."""

import hashlib
import json
import math
import os
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from time import strftime
from typing import Any, NamedTuple

from framework.cli import tables as units
from framework.cli.outcome import RunOutcome, option, run_options
from framework.cli.run_records import UNKNOWN, chosen, varying
from framework.commands.report.recorded_runs import (
    RecordedRun,
    RecordedSpan,
    RelativeTimes,
    find_runs,
    relative_times,
)
from framework.contracts.span import ALL_SPANS, IDLE
from framework.errors import ConfigError, say
from framework.measure.statistics import NO_CLAIM, claim, median, spread_share
from framework.system.durable import write_bytes, write_text
from framework.system.run_dir import shown
from framework.system.stopping import message_if_stopped
from framework.system.user_code import needed

TEMPLATES = Path(__file__).parent / "templates"
MOST_METRICS = 4
ABSENT = "not set"
MACHINE = "machine."  # begins the names of facts about it


@dataclass(frozen=True)
class ReportOptions:
    """Write one page of runs, sweeps and benches: where the time went, what was learned."""

    dirs: list[str] = option(
        about="runs, sweeps and bench files; 'paceline report DIR ...' is short for dirs=[DIR,...]",
        means="a list of paths",
    )
    page: str | None = option(
        None,
        "where it goes; null: report.html in the one directory given, beside the bench file given, "
        "or below outputs/report",
        means="a path",
    )
    relative: str = option(
        "first",
        "whose time is 1 in the chart of relative times: first, or slowest",
        choices=("first", "slowest"),
        number=175,
    )
    png: bool = option(True, "also each chart as a picture beside the page, for a README")


def main(arguments: list[str]) -> int:
    """Run the command. Words that are not options are paths."""
    if not arguments:
        fix = "name runs, sweeps or bench files: paceline report DIR [DIR ...]"
        raise ConfigError(103, "dirs", "must be given", fix)
    return run_options("report", arguments, ReportOptions, _report, "dirs")


def _report(options: ReportOptions, run_dir: Path) -> RunOutcome:
    dirs = options.dirs
    if not dirs:
        fix = "give 'paceline report DIR [DIR ...]'"
        raise ConfigError(101, f"dirs = {dirs}", "names nothing", fix)
    first = Path(dirs[0])
    page = first / "report.html"
    if len(dirs) > 1:
        page = run_dir / "report.html"
    elif first.is_file():  # a bench file
        page = first.with_suffix(".html")
    with message_if_stopped("stopped{by}: the report is not complete"):
        write_report(dirs, Path(options.page or page), options.relative, options.png)
    return RunOutcome(0, "written")


def write_report(
    paths: Sequence[str], output: Path, relative: str = "first", png: bool = True
) -> None:
    """Write one page about all runs at ``paths`` and pictures beside it, and print its path.

    ConfigError C176 if ``output`` is no .html file, ResourceError R112 without the extra.
    """
    if output.suffix != ".html":
        fix = "give a name that ends in .html"
        raise ConfigError(176, f"page = {output}", "does not name a page", fix)
    needed("matplotlib", "report")
    needed("jinja2", "report")
    from markupsafe import Markup  # noqa: PLC0415

    from framework.cli.pages import rendered  # noqa: PLC0415
    from framework.commands.report.charts import draw_charts  # noqa: PLC0415

    runs = labeled(find_runs(paths))
    compared = relative_times(runs, relative)
    charts = draw_charts(runs, compared, png)
    places = {os.path.abspath(path) for path in paths}
    if len(paths) > 1:
        places = {os.path.dirname(place) for place in places}
    kind = "Sweep"
    if runs[0].kind == "cell":
        kind = "Bench"
    elif len(runs) == 1:
        kind = "Run"
    title = f"{kind} {shown(os.path.basename(min(places)))}"
    if len(places) > 1:
        title = f"{len(runs)} runs of {len(paths)} places"
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")  # sorts the tables
    html = rendered(
        TEMPLATES / "report.html",
        title=title,
        written=strftime("%Y-%m-%d %H:%M"),
        script=Markup(script),  # noqa: S704  # our own file
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        runs=runs,
        cards=cards(runs),
        remarks=remarks(runs),
        commands=_together((run.command, n) for n, run in enumerate(runs) if run.command),
        charts=charts,
        tables=[table for table in _tables(runs, compared) if table.rows],
        changes=differences([run.config for run in runs]),
        machines=_machines(runs),
    )
    write_text(output, html)
    for chart in charts:
        if chart.png is not None:
            write_bytes(output.with_name(f"{output.stem}-{chart.name}.png"), chart.png)
    what = units.plural(len(runs), "run")
    if charts and png:
        what += f", and {units.plural(len(charts), 'picture')} beside it"
    say(f"report: {output}  ({what})")


def labeled(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Label each run with the choices that set it apart, else with the name of its directory."""
    keys = varying(runs)
    labels: list[str] = []
    for run in runs:
        words: list[str] = []
        for key in keys:
            value = chosen(run, key)
            is_clear = value[:1].isalpha() and value not in ("true", "false", "null", "none")
            if value != UNKNOWN:
                words.append(value if is_clear else f"{key}={value}")
        labels.append(" · ".join(words) or run.name)
    if keys:
        labels = _unique(labels, [f" ({run.name})" for run in runs])
    labels = _unique(labels, [f" #{number}" for number in range(len(runs))])
    return [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]


def _unique(labels: Sequence[str], endings: Sequence[str]) -> list[str]:
    counts = Counter(labels)
    pairs = zip(labels, endings, strict=True)
    return [label + ending if counts[label] > 1 else label for label, ending in pairs]


class Difference(NamedTuple):
    """Every value of one key, with the numbers of the runs that have the value."""

    key: str
    values: list[tuple[str, list[int]]]


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


def _machines(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Return the facts in plain words: ``machine.memory_bytes`` becomes memory, in GiB."""
    result: list[Difference] = []
    for key, values in differences([run.facts for run in runs], everything=True):
        name = key.removeprefix("machine.").removeprefix("versions.").removeprefix("num_")
        plain = values
        if name.endswith("_bytes"):
            plain = [(units.size(float(v)) if v.isdecimal() else v, of) for v, of in values]
        result.append(Difference(name.removesuffix("_bytes").replace("_", " "), plain))
    return result


def _num_machines(runs: Sequence[RecordedRun]) -> int:
    known = [run.facts.items() for run in runs if run.facts]
    return len({str([fact for fact in facts if fact[0].startswith(MACHINE)]) for facts in known})


class Card(NamedTuple):
    """One figure: a large ``value`` with a line of ``detail`` below it."""

    title: str
    value: str
    detail: str


def cards(runs: Sequence[RecordedRun]) -> Iterator[Card]:
    """Yield the figures of a single run, or what sets several runs apart."""
    if len(runs) == 1:
        run = runs[0]
        steps, wall_s = run.figures.get("steps", 0), run.figures.get("wall_s")
        ended = f"{units.plain(steps)} steps in {units.seconds(wall_s)}"
        yield Card("Status", run.status, run.reason or ended)
        detail = "records per second"
        if run.spread:
            detail += f", {run.spread} between reports"
        yield Card("Speed", units.rate(run.records_per_s), detail)
        if run.wait_share is not None:
            of_step = f"of a step of {units.seconds(run.step_s)}"
            yield Card("Waiting for data", units.share(run.wait_share), of_step)
        if run.ranks and run.ranks.late:
            late = run.ranks.late
            lost = f"of the run lost by the others, in {late.span} of rank {late.rank}"
            yield Card("Waiting for a rank", units.share(late.lost_share), lost)
        for name, value in list(run.val.items())[:2]:
            yield Card(f"Validation {name}", units.plain(value), run.best_of(name))
        if "peak_rss_bytes" in run.figures:
            peak = units.size(run.figures["peak_rss_bytes"])
            yield Card("Memory", peak, "peak of the process on the host")
        return
    counts = Counter(run.status for run in runs)
    what = {"cell": "Cells", "run": "Runs"}[runs[0].kind]
    yield Card(what, str(len(runs)), ", ".join(f"{n} {status}" for status, n in counts.items()))
    known = [run for run in runs if run.is_whole and run.records_per_s]
    if len(known) > 1 and len({run.what for run in known}) == 1 and _num_machines(known) < 2:
        yield _speed_card(known)
    waits = [run.wait_share for run in runs if run.wait_share is not None and run.what == "train"]
    if waits:
        ends = f"{units.share(min(waits))} to {units.share(max(waits))}"
        text = f"of a step in the median run; {ends}"
        yield Card("Waiting for data", units.share(median(waits)), text)
    # Loaders and stores must not change the losses.
    groups = equal_losses(runs)
    num_runs = sum(map(len, groups))
    if num_runs > 1 and len(groups) == 1:
        same = f"all {num_runs} runs have the same training losses, to the last bit"
        yield Card("Learned", "the same", same)
    elif num_runs > 1:
        if len(groups) < num_runs:
            different = f"{num_runs} runs have {len(groups)} different sequences of training losses"
            yield Card("Learned", f"{len(groups)} ways", different)
        losses: list[tuple[float, int, str]] = []
        for number, run in enumerate(runs):
            means = (mean for key, mean in run.val.items() if key.rpartition(".")[2] == "loss")
            loss = next(means, math.nan)  # of the first validation set
            if math.isfinite(loss):
                losses.append((loss, number, run.label))
        if losses:
            loss, _, label = min(losses)
            yield Card("Lowest last validation loss", units.plain(loss), label)


def equal_losses(runs: Sequence[RecordedRun]) -> list[list[int]]:
    """Group the numbers of runs whose training losses are equal at equal steps."""
    groups: dict[bytes, list[int]] = {}
    for number, run in enumerate(runs):
        curve = run.curves.get(("train", "loss"))
        if curve is not None and len(curve.values):
            groups.setdefault(curve.steps.tobytes() + curve.values.tobytes(), []).append(number)
    return list(groups.values())


def _speed_card(runs: Sequence[RecordedRun]) -> Card:
    """Return the fastest choice if the test proves it, else that no difference can be claimed.

    Runs that differ only in their seed, and have the same code, are repeats of one choice. A sample
    of the test is a run, or a round of a bench.
    """
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        choices = {key: value for key, value in run.choices.items() if key != "seed"}
        code = {name: fact for name, fact in run.facts.items() if not name.startswith(MACHINE)}
        same = json.dumps([choices, code], sort_keys=True, default=str)
        groups.setdefault(same, []).append(replace(run, choices=choices))
    samples: list[list[tuple[float, float, float]]] = []
    for repeats in groups.values():
        samples.append([])
        for run in repeats:
            load = run.resources.get("usage.others_cpu_cores", 0.0)
            started_s = 0.0
            with suppress(ValueError):  # it is not known
                started_s = datetime.strptime(run.started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
            for per_s in list(run.rounds.values()) or [run.records_per_s or 0.0]:
                samples[-1].append((per_s, load, started_s))
    rates, loads, starts = ([[s[n] for s in each] for each in samples] for n in range(3))
    spread = max(map(spread_share, rates))
    repeated = f", repeats differ by \N{PLUS-MINUS SIGN} {units.share(spread)}" if spread else ""
    if len(groups) < 2:
        detail = f"records per second, median of {len(runs)} runs of one choice{repeated}"
        return Card("Speed", units.rate(median(run.records_per_s or 0.0 for run in runs)), detail)
    verdict = claim(rates, loads, starts)
    labels = [run.label for run in labeled([repeats[0] for repeats in groups.values()])]
    low, high = min(verdict.medians), max(verdict.medians)
    fast, slow = labels[verdict.highest], labels[verdict.medians.index(low)]
    if verdict.proved:
        detail = f"{units.rate(high)} records/s, {high / low:.2f} times the slowest, {slow}"
        return Card("Fastest", fast, f"{detail}{repeated} ({verdict.words})")
    detail = f"{units.rate(low)} to {units.rate(high)} records/s, the highest in {fast}"
    return Card("Speed", NO_CLAIM, f"{detail}{repeated} ({verdict.words})")


class Remark(NamedTuple):
    numbers: list[int]
    text: str


def remarks(runs: Sequence[RecordedRun]) -> list[Remark]:
    """Return why runs did not finish, their notes, and whether their times can be compared."""
    texts: list[tuple[str, int]] = []
    if (count := _num_machines(runs)) > 1:
        what = f"measured on {count} different machines (see below): their times cannot be compared"
        texts += [(what, number) for number, run in enumerate(runs) if run.facts]
    for number, run in enumerate(runs):
        if run.reason:
            texts.append((f"{run.status}: {run.reason}", number))
        elif not run.is_whole:
            texts.append((run.status, number))
        if run.ranks and run.ranks.late:
            texts.append((run.ranks.late.words, number))
    return _together(texts + [(note, n) for n, run in enumerate(runs) for note in run.notes])


def _together(texts: Iterable[tuple[str, int]]) -> list[Remark]:
    numbers: dict[str, list[int]] = {}
    for text, number in texts:
        numbers.setdefault(text, []).append(number)
    return [Remark(of, text) for text, of in numbers.items()]


class TableCell(NamedTuple):
    """A cell: a text with small lines of details below it."""

    text: str
    sort: float | str | None = ""  # None: in the last rows; "": by the text
    details: tuple[str, ...] = ()
    mark: str = ""  # the style of the text


class Table(NamedTuple):
    """A table of the page. Its first two columns are the number and the label of each run."""

    name: str  # its id on the page, by which the template has its title and caption
    columns: Sequence[tuple[str, str]]  # (name, unit or "")
    rows: Sequence[Sequence[TableCell]]


Column = tuple[str, str, list[TableCell]]  # name, unit or "", a cell for each run


def _tables(runs: Sequence[RecordedRun], compared: RelativeTimes) -> Iterator[Table]:
    yield runs_table(runs, compared)

    def cell(span: RecordedSpan | None, run: RecordedRun) -> TableCell:
        if span is None:
            return TableCell(units.NONE, None)
        details = [units.share(span.mean_s / (run.step_s or 1.0))]
        if span.p50_s is not None:
            details.append(f"{units.seconds(span.p50_s)} | {units.seconds(span.p90_s)}")
        return _figure(span.mean_s, units.seconds, *details)

    spans = dict.fromkeys([IDLE, *ALL_SPANS, *(name for run in runs for name in run.spans)])
    of_spans = [
        *((name, "", [cell(run.spans.get(name), run) for run in runs]) for name in spans),
        ("step", "all", [_figure(run.step_s, units.seconds) for run in runs]),
        ("wait", "of the host, beside", [cell(run.overlapped.get("wait"), run) for run in runs]),
    ]
    yield _table("spans", runs, of_spans)
    yield ranks_table(runs)
    resources = [run.resources for run in runs]
    columns: list[Column] = []
    for key in dict.fromkeys(name for of in resources for name, value in of.items() if value):
        name = key.removeprefix("stages_s.").removeprefix("usage.")
        name = name.removesuffix("_bytes").removesuffix("_share")
        columns.append(_measured(resources, key, name.replace("_", " ").replace(".", " ")))
    yield _table("resources", runs, columns)


def runs_table(runs: Sequence[RecordedRun], compared: RelativeTimes) -> Table:
    figures, resources = [run.figures for run in runs], [run.resources for run in runs]
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
    return _table("runs", runs, columns)


def ranks_table(runs: Sequence[RecordedRun]) -> Table:
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
    return _table("ranks", runs, columns)


def _table(name: str, runs: Sequence[RecordedRun], columns: Sequence[Column]) -> Table:
    """Leave out columns in which no run has a figure, and all rows if no column is left."""
    known = [column for column in columns if any(cell.sort is not None for cell in column[2])]
    heads = [("#", ""), ("run", ""), *((head, unit) for head, unit, _ in known)]
    rows: list[list[TableCell]] = []
    for number, run in enumerate(runs if known else ()):
        cells = [cells[number] for _, _, cells in known]
        rows.append([TableCell(str(number), float(number)), TableCell(run.label), *cells])
    return Table(name, heads, rows)


def _figure(value: float | None, word: Callable[[Any], str], *details: str) -> TableCell:
    is_known = value is not None and math.isfinite(value)
    return TableCell(word(value), value if is_known else None, tuple(filter(None, details)))


def _measured(tables: Sequence[Mapping[str, float]], key: str, name: str, unit: str = "") -> Column:
    return name, unit, [_figure(table.get(key), partial(units.measured, key)) for table in tables]
