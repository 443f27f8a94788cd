"""What a run prints at its end: where the step time went, and where its files are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from framework.config.schema import PROFILE
from framework.contracts.rank_spans import LateRank
from framework.contracts.slow_records import slow_words
from framework.contracts.span import IDLE
from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED
from framework.measure.statistics import BUSY_CORES, NO_CLAIM, claim
from framework.system.run_dir import ENDED, FACTS, SUMMARY, read_object
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
# Without a terminal rich assumes 80 columns, and folds every row of a sweep.
SWEEP_COLUMNS = 110


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
        console.print(f"{_metrics(summary)}  {rate}", soft_wrap=True)
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
        best = _metrics({"val": summary["best"]}).removeprefix("val ")
        yield f"{_metrics(summary)}  (best {best})"


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


def _metrics(summary: dict[str, Any]) -> str:
    values = [f"{name} {mean:.4f}" for name, mean in summary["val"].items() if name != "step"]
    if not values:
        return ""
    return "val " + "  ".join(values)


class SweepJob(NamedTuple):
    """A job of a sweep.

    Attributes:
        number: Hydra's, with which the name of its directory begins.
        run_dir: Its directory.
        words: Its overrides.
        refusal: Why it could not start; empty if it did.
    """

    number: int
    run_dir: Path
    words: Sequence[str]
    refusal: str = ""

    @classmethod
    def read(cls, run_dir: Path) -> "SweepJob":
        """Return a job that another process has run."""
        number = re.match(r"\d*", run_dir.name)
        words = read_object(run_dir / FACTS).get("overrides", [])
        return cls(int(number[0]) if number and number[0] else 0, run_dir, words)

    @property
    def chosen(self) -> dict[str, str]:
        words = [word if "=" in word else f"{word.removeprefix('~')}=null" for word in self.words]
        return dict(word.split("=", 1) for word in words)


def print_sweep(jobs: Sequence[SweepJob]) -> None:
    """Print a line per job: the choices in which the jobs differ, and how it went."""
    chosen = [job.chosen for job in jobs]
    every = dict.fromkeys(key for job in chosen for key in job)
    keys = [key for key in every if len({job.get(key) for job in chosen}) > 1]
    table = Table("job", *keys, title="sweep", title_justify="left")
    for name in ("records/s", "other programs", "waiting", "validation"):
        table.add_column(name, justify="right")
    for job, words in zip(jobs, chosen, strict=True):
        table.add_row(str(job.number), *[words.get(key, "") for key in keys], *_figures(job))
    console = SafeConsole()
    console.width = max(console.width, SWEEP_COLUMNS)
    console.print(table)
    differing = [{key: job[key] for key in keys if key in job} for job in chosen]
    if words := _fastest(jobs, differing):
        console.print(words, soft_wrap=True)
    console.print(f"sweep directory: {jobs[0].run_dir.parent}", soft_wrap=True)


def _fastest(jobs: Sequence[SweepJob], chosen: list[dict[str, str]]) -> str:
    """Name the fastest choice and its test, or say why no difference can be claimed.

    Jobs that differ only in their seed are repeats of one choice.
    """
    samples: dict[str, list[tuple[float, float, float]]] = {}
    for job, words in zip(jobs, chosen, strict=True):
        summary = {} if job.refusal else read_object(job.run_dir / SUMMARY)
        if summary.get("status") == "finished":
            name = " ".join(f"{key}={value}" for key, value in words.items() if key != "seed")
            load = summary.get("usage", {}).get("others_cpu_cores", 0.0)
            samples.setdefault(name, []).append((summary["records_per_s"], load, job.number))
    if len(samples) < 2:
        return ""
    rates, loads, places = (
        [[sample[column] for sample in each] for each in samples.values()] for column in range(3)
    )
    result = claim(rates, loads, places)
    name = list(samples)[result.highest]
    if result.proved:
        return f"fastest: {name} ({result.words})"
    return f"{NO_CLAIM} ({result.words}); the highest rate has {name}"


def _figures(job: SweepJob) -> tuple[str, str, str, str]:
    """Return the cells of one job: rate, other programs, waiting, validation."""
    if job.refusal:
        return "", "", "", job.refusal
    summary = read_object(job.run_dir / SUMMARY)
    if not summary:
        return "", "", "", str(read_object(job.run_dir / ENDED).get("reason", "failed"))
    share = beside = ""
    spans = summary.get("spans") or {}
    if waiting := spans.get(IDLE) or spans.get("wait"):
        share = f"{100 * waiting['share']:.0f} %"
    usage = summary.get("usage", {})
    if "others_cpu_cores" in usage:
        beside = f"{usage['others_cpu_cores']:.1f} cores"
    return f"{summary['records_per_s']:,.0f}", beside, share, _metrics(summary)
