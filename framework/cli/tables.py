"""What commands print: numbers with their units, tables, bars of progress, the end of a run."""

import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import progress
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from framework.config.schema import PROFILE
from framework.contracts.span import IDLE, LateRank
from framework.contracts.waits import slow_words
from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, printable
from framework.measure.statistics import BUSY_CORES
from framework.system.run_dir import SUMMARY, read_object
from framework.system.safe_text import SafeConsole

if TYPE_CHECKING:
    from framework.pack.packing import OnProgress, PackProgress

Row = Sequence[str]
NONE = "\N{EN DASH}"
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
# (the least duration in this unit, seconds in the unit, its name): 90 s, not 1.5 min
TIMES = (
    (7200.0, 3600.0, "h"),
    (120.0, 60.0, "min"),
    (1.0, 1.0, "s"),
    (1e-3, 1e-3, "ms"),
    (-math.inf, 1e-6, "µs"),
)
COLUMNS = 110  # without a terminal Rich wraps rows at 80 columns
BORDERS = 3  # around a cell, beside one more for the whole row
FOLDED = 8  # the narrowest that a column becomes whose cells may be folded
STAGES = ("read", "decode", "transform", "collate")
# Key of the summary's usage, its label, its divisor and unit.
USAGE = (
    ("cpu_cores", "this process", 1, ".2f", "cores"),
    ("workers_cpu_cores", "workers", 1, ".2f", "cores"),
    ("others_cpu_cores", "other programs", 1, ".2f", "cores"),
    ("gpu_busy_share", "GPU busy", 0.01, ".0f", "%"),
    ("peak_rss_bytes", "peak memory", 2**30, ".2f", "GiB"),
    ("peak_tree_rss_bytes", "with workers at most", 2**30, ".2f", "GiB"),
    ("peak_device_bytes", "of the device", 2**30, ".2f", "GiB"),
)
MENTIONED_CORES = 0.1  # the least that other programs keep busy to be mentioned


def rate(value: float | None) -> str:
    """Return three significant digits, or all digits before the point."""
    if value is None:
        return NONE
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def share(value: float | None) -> str:
    """Return a fraction of a whole in percent."""
    return NONE if value is None else f"{100 * value:.1f} %"


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}\N{MULTIPLICATION SIGN}"


def plain(value: float | None) -> str:
    """Return a number without a unit: a whole number in full, any other with four digits."""
    if value is None:
        return NONE
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if value is None or not math.isfinite(value):
        return NONE
    unit_s, name = time_unit(value)
    return f"{rate(value / unit_s)} {name}"


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit for durations up to ``longest_s`` as (seconds in it, its name)."""
    return next((unit_s, name) for least_s, unit_s, name in TIMES if longest_s >= least_s)


def size(num_bytes: float | None) -> str:
    if num_bytes is None or not math.isfinite(num_bytes):
        return NONE
    power = min(len(BYTES) - 1, int(math.log(max(1.0, abs(num_bytes)), 1024)))
    return f"{rate(num_bytes / 1024**power)} {BYTES[power]}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 core, 2 cores, 3 processes."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}{'es' if noun.endswith('s') else 's'}"


def measured(name: str, value: float | None) -> str:
    """Return ``value`` in the unit that ``name`` ends with: ``_s``, ``_bytes``, ``_share``."""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_share"):
        return share(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return seconds(value)
    return plain(value)


def print_table(
    title: str, left: Row, right: Row, rows: Iterable[Row], last: Row = (), whole: Row = ()
) -> None:
    """Print ``rows`` below headings. ``left`` and ``last`` columns are aligned to the left.

    Texts that are too long are folded, but not in ``right`` columns and in those of ``whole``.
    A short row has empty cells at its end.
    """
    table = Table(title=title, title_justify="left")
    for name in (*left, *right, *last):
        if name in right:
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="fold", no_wrap=name in whole)
    for row in rows:
        table.add_row(*map(printable, row))  # here, so that columns are as wide
    width = 1
    for column in table.columns:
        longest = max(cell_len(str(text)) for text in (column.header, *column.cells))
        width += BORDERS + (longest if column.no_wrap else min(longest, FOLDED))
    console = SafeConsole()
    console.width = max(console.width, COLUMNS, width)
    console.print(table)


@contextmanager
def progress_bar(name: str) -> Generator[tuple[Console, "OnProgress"]]:
    """Yield the console and a function that draws the bar of a phase, on a terminal."""
    figures = "{task.completed}/{task.total}  {task.fields[rate]:,.0f} records/s  "
    figures += "{task.fields[mb]:,.1f} MB"
    bar = _bar("{task.fields[phase]} {task.description}", progress.TextColumn(figures))
    phase, began, before = "", 0.0, 0  # and the time and the records at its beginning
    with bar:
        task = bar.add_task(name, total=None, mb=0.0, rate=0.0, phase="preparing")

        def draw(now: "PackProgress") -> None:
            nonlocal phase, began, before
            if now.phase != phase:
                phase, began, before = now.phase, time.monotonic(), now.records
                bar.reset(task, total=now.num_items)
            done = now.records if phase == "joining" else now.items
            rate = (now.records - before) / max(1e-3, time.monotonic() - began)
            fields: dict[str, Any] = {"mb": now.num_bytes / 1e6, "rate": rate, "phase": phase}
            bar.update(task, completed=done, total=now.num_items, **fields)

        yield bar.console, draw


@contextmanager
def counted_bar(words: str, total: int | None = None) -> Generator[Callable[..., None]]:
    """Yield a function that takes ``completed``, ``advance`` or ``total`` of counted work."""
    with _bar("{task.description}", progress.MofNCompleteColumn()) as bar:
        yield partial(bar.update, bar.add_task(printable(words), total=total))


def _bar(words: str, figures: progress.ProgressColumn) -> progress.Progress:
    console = SafeConsole(stderr=True)
    first = (progress.TextColumn(words, markup=False), progress.BarColumn())
    columns = (*first, figures, progress.TimeRemainingColumn())
    is_hidden = not console.is_terminal
    return progress.Progress(*columns, console=console, transient=True, disable=is_hidden)


def print_run(run_dir: Path, code: int, short: bool) -> None:
    """Print the tables of one run, or one line for a job of a sweep (``short``)."""
    summary: dict[str, Any] = {}
    if code in (0, EXIT_PREEMPTED, EXIT_INTERRUPTED):
        summary = read_object(run_dir / SUMMARY)
    lines: list[str] = []
    if summary and short:
        rate = f"{summary['records_per_s']:,.0f} records/s{_other_programs(summary)}"
        lines.append(f"{metrics_words(summary)}  {rate}")
    elif summary:
        if summary.get("spans"):
            print_spans(summary["spans"])
        if ranks := summary.get("ranks"):
            rows: list[list[str]] = []
            for name, span in ranks["spans"].items():
                times = (f"{1e3 * span[key]:.3f} ms" for key in ("min_s", "median_s", "max_s"))
                rows.append([name, *times, str(span["rank"])])
            heads = ("min", "median", "max", "slowest rank")
            print_table(f"the mean step of {ranks['num']} ranks", ["span"], heads, rows)
            if ranks["late"]:
                lines.append(LateRank(**ranks["late"]).words)
        lines += _result_lines(summary)
    for trace in sorted((run_dir / PROFILE).glob("*")):
        lines.append(f"trace: {trace} (open it at https://ui.perfetto.dev)")
    if summary:
        lines.append(f"run directory: {run_dir}")
    console = SafeConsole()
    for line in lines:
        console.print(line, soft_wrap=True)


def print_spans(spans: Mapping[str, Any], title: str = "where the step time went") -> None:
    """Print the table of the spans of a step, from their figures in ``summary.json``."""
    rows: list[list[str]] = []
    for name, span in spans.items():
        times = (f"{1e3 * span[key]:.3f} ms" for key in ("p50_s", "p90_s", "mean_s"))
        rows.append([name, f"{100 * span['share']:.1f} %", *times, f"{span['total_s']:.2f} s"])
    print_table(title, ["span"], ("share", "p50", "p90", "mean", "total"), rows)


def _result_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    if IDLE in summary.get("spans", {}):
        line = "wait is the host's, beside which the device may work; "
        yield f"{line}idle, the device's, is what it costs"
    if stages_s := summary.get("stages_s"):
        names = sorted(stages_s, key=lambda name: (*STAGES, name).index(name))
        line = "reading, thread-seconds: "
        line += "  ".join(f"{name} {stages_s[name]:.2f}" for name in names)
        queue = summary.get("queue", {})
        if queue.get("ready") is not None:
            line += f", {queue['ready']:.1f} of {queue['depth']} batches ready"
        yield line
    if content := summary.get("content"):
        shares = "  ".join(f"{name} {100 * share:.1f} %" for name, share in content.items())
        yield f"in the batches: {shares}"
    usage = summary.get("usage", {})
    used: list[str] = []
    for key, label, divisor, form, unit in USAGE:
        if key in usage and (key != "others_cpu_cores" or usage[key] >= MENTIONED_CORES):
            used.append(f"{label} {usage[key] / divisor:{form}} {unit}")
    if used:
        yield "  ".join(used)
    has_threads = "peak_device_bytes" not in usage and os.environ.get("OMP_NUM_THREADS") != "1"
    if has_threads and _other_programs(summary):
        line = "other programs keep cores busy: the threads of a step wait for each other then; "
        yield f"{line}OMP_NUM_THREADS=1 may be faster"
    if own := summary.get("recompute"):
        line = f"recompute: a pass of {own['records']} records keeps "
        line += f"{own['kept_bytes'] / 1e6:,.1f} MB instead of "
        line += f"{own['kept_bytes_without'] / 1e6:,.1f} MB, and takes {1e3 * own['pass_s']:,.1f} "
        yield f"{line}ms instead of {1e3 * own['pass_s_without']:,.1f} ms"
    if slow := slow_words(summary.get("slow_records", {}), summary.get("train_s", 0.0)):
        yield slow
    if skipped := summary.get("skipped_steps"):
        yield f"skipped: {skipped} of {summary['steps']} steps, whose gradients were not finite"
    steps = f"{summary['run_steps']} steps in {summary['wall_s']:.1f} s"
    yield f"{summary['status']}: {steps}, {summary['records_per_s']:,.0f} records/s"
    if reason := summary.get("reason"):
        yield f"ended early: {reason}"
    if summary["val"]:
        best = metrics_words({"val": summary["best"]}).removeprefix("val ")
        yield f"{metrics_words(summary)}  (best {best})"
    if tested := metrics_words({"val": summary.get("test", {})}):
        weights = "the best weights" if summary["best"] else "the last weights"
        yield f"{tested.replace('val', 'test', 1)}  (once, with {weights})"


def _other_programs(summary: Mapping[str, Any]) -> str:
    others = summary.get("usage", {}).get("others_cpu_cores", 0.0)
    return f"  (beside other programs on {others:.1f} cores)" if others >= BUSY_CORES else ""


def metrics_words(summary: Mapping[str, Any]) -> str:
    """Return the means of the last validation; nothing if there is none."""
    values = [f"{name} {mean:.4f}" for name, mean in summary["val"].items() if name != "step"]
    return "val " + "  ".join(values) if values else ""
