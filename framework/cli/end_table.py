"""What a run prints at its end: where the step time went, and where its files are."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from framework.config.schema import PROFILE
from framework.contracts.rank_spans import LateRank
from framework.contracts.slow_records import slow_words
from framework.contracts.span import IDLE
from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED
from framework.measure.statistics import BUSY_CORES
from framework.system.run_dir import SUMMARY, read_object
from framework.system.safe_console import SafeConsole

STAGES = ("read", "decode", "transform", "collate")
# Key of the summary's usage, its label, its unit.
USAGE = (
    ("cpu_cores", "this process", "cores"),
    ("workers_cpu_cores", "workers", "cores"),
    ("others_cpu_cores", "other programs", "cores"),
    ("gpu_busy_share", "GPU busy", "%"),
    ("peak_rss_bytes", "peak memory", "bytes"),
    ("peak_tree_rss_bytes", "with workers at most", "bytes"),
    ("peak_device_bytes", "of the device", "bytes"),
)
# Cores that other programs keep busy: enough to mention.
SEEN = 0.1


def _print_spans(console: SafeConsole, summary: Mapping[str, Any]) -> None:
    if summary.get("spans"):
        console.print(spans_table(summary["spans"]))
    if ranks := summary.get("ranks"):
        console.print(ranks_table(ranks))
        if ranks["late"]:
            console.print(LateRank(**ranks["late"]).words, soft_wrap=True)


def print_run(run_dir: Path, code: int, short: bool) -> None:
    """Print the table of one run, or one line for a job of a sweep (``short``)."""
    console = SafeConsole()
    summary: dict[str, Any] = {}
    if code in (0, EXIT_PREEMPTED, EXIT_INTERRUPTED):
        summary = read_object(run_dir / SUMMARY)
    if summary and short:
        rate = f"{summary['records_per_s']:,.0f} records/s{_beside(summary)}"
        console.print(f"{metrics_words(summary)}  {rate}", soft_wrap=True)
    elif summary:
        _print_spans(console, summary)
        for line in _lines(summary):
            console.print(line, soft_wrap=True)
    for trace in sorted((run_dir / PROFILE).glob("*")):
        console.print(f"trace: {trace} (open it at https://ui.perfetto.dev)", soft_wrap=True)
    if summary:
        console.print(f"run directory: {run_dir}", soft_wrap=True)


def spans_table(spans: dict[str, Any]) -> Table:
    """Return the table of the spans of a step, from their figures in ``summary.json``."""
    table = Table("span", title="where the step time went", title_justify="left")
    for name in ("share", "p50", "p90", "mean", "total"):
        table.add_column(name, justify="right")
    for name, span in spans.items():
        times = (f"{1e3 * span[key]:.3f} ms" for key in ("p50_s", "p90_s", "mean_s"))
        table.add_row(name, f"{100 * span['share']:.1f} %", *times, f"{span['total_s']:.2f} s")
    return table


def ranks_table(ranks: dict[str, Any]) -> Table:
    """Return the table of the spans over all ranks, from ``ranks`` in ``summary.json``."""
    title = f"the mean step of {ranks['num']} ranks"
    table = Table("span", title=title, title_justify="left")
    for name in ("min", "median", "max", "slowest rank"):
        table.add_column(name, justify="right")
    for name, span in ranks["spans"].items():
        times = (f"{1e3 * span[key]:.3f} ms" for key in ("min_s", "median_s", "max_s"))
        table.add_row(name, *times, str(span["rank"]))
    return table


def _lines(summary: dict[str, Any]) -> Iterator[str]:
    """Yield what the table has no room for: reading, the machine, and the result."""
    if IDLE in summary.get("spans", {}):
        yield (
            "wait is the host's, beside which the device may work; "
            "idle, the device's, is what it costs"
        )
    if stages_s := summary.get("stages_s"):
        names = sorted(stages_s, key=lambda name: (*STAGES, name).index(name))
        stages = "  ".join(f"{name} {stages_s[name]:.2f}" for name in names)
        line = f"reading, thread-seconds: {stages}"
        queue = summary.get("queue", {})
        if queue.get("ready") is not None:
            line += f", {queue['ready']:.1f} of {queue['depth']} batches ready"
        yield line
    if content := summary.get("content"):
        shares = "  ".join(f"{name} {100 * share:.1f} %" for name, share in content.items())
        yield f"in the batches: {shares}"
    usage = dict(summary.get("usage", {}))
    if usage.get("others_cpu_cores", 0.0) < SEEN:
        usage.pop("others_cpu_cores", None)
    used = [f"{label} {_scaled(usage[key], unit)}" for key, label, unit in USAGE if key in usage]
    if used:
        yield "  ".join(used)
    if _beside(summary) and "peak_device_bytes" not in usage:
        yield (
            "other programs keep cores busy: the threads of a step wait for each other then; "
            "OMP_NUM_THREADS=1 may be faster"
        )
    if slow := slow_words(summary.get("slow_records", {}), summary.get("train_s", 0.0)):
        yield slow
    if skipped := summary.get("skipped_steps"):
        yield f"skipped: {skipped} of {summary['steps']} steps, whose gradients were not finite"
    yield from _result(summary)


def _result(summary: dict[str, Any]) -> Iterator[str]:
    steps = f"{summary['run_steps']} steps in {summary['wall_s']:.1f} s"
    yield f"{summary['status']}: {steps}, {summary['records_per_s']:,.0f} records/s"
    if reason := summary.get("reason"):
        yield f"ended early: {reason}"
    if summary["val"]:
        best = metrics_words({"val": summary["best"]}).removeprefix("val ")
        yield f"{metrics_words(summary)}  (best {best})"


def _beside(summary: dict[str, Any]) -> str:
    others = summary.get("usage", {}).get("others_cpu_cores", 0.0)
    if others < BUSY_CORES:
        return ""
    return f"  (beside other programs on {others:.1f} cores)"


def _scaled(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.0f} %"
    if unit == "bytes":
        return f"{value / 2**30:.2f} GiB"
    return f"{value:.2f} cores"


def metrics_words(summary: dict[str, Any]) -> str:
    """Return the means of the last validation; nothing if there is none."""
    values = [f"{name} {mean:.4f}" for name, mean in summary["val"].items() if name != "step"]
    if not values:
        return ""
    return "val " + "  ".join(values)
