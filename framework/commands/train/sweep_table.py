"""The table at the end of a sweep: how its jobs went, and which choice is the fastest."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from framework.cli.outcome import metrics_words
from framework.contracts.span import IDLE
from framework.measure.statistics import NO_CLAIM, claim
from framework.system.run_dir import ENDED, FACTS, SUMMARY, read_object
from framework.system.safe_text import SafeConsole

# Without a terminal rich assumes 80 columns, and folds every row of a sweep.
SWEEP_COLUMNS = 110


class SweepJob(NamedTuple):
    """A job of a sweep."""

    number: int  # Hydra's, with which the name of its directory begins
    run_dir: Path
    words: Sequence[str]  # its overrides
    refusal: str = ""  # why it could not start; empty if it did

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
    return f"{summary['records_per_s']:,.0f}", beside, share, metrics_words(summary)
