"""The few figures that the page begins with."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from framework.commands.report.compare_runs import Relative, alike
from framework.commands.report.recorded_run import RecordedRun
from framework.commands.report.units import measured, plain, rate, seconds, share
from framework.measure.statistics import claim, median


class Card(NamedTuple):
    """``value`` is large, ``detail`` below it."""

    title: str
    value: str
    detail: str


def cards(runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative) -> list[Card]:
    """Of one run its own figures; of several what tells them apart."""
    return list(_of_one(runs[0]) if len(runs) == 1 else _of_many(runs, names, compared))


def _of_one(run: RecordedRun) -> Iterator[Card]:
    steps = plain(run.figures.get("steps", 0))
    yield Card(
        "Status", run.status, run.reason or f"{steps} steps in {seconds(run.figures.get('wall_s'))}"
    )
    yield Card("Speed", f"{rate(run.records_per_s)}", "records per second" + _plus_minus(run))
    if run.wait_share is not None and run.step_s is not None:
        yield Card("Waiting for data", share(run.wait_share), f"of a step of {seconds(run.step_s)}")
    for name, value in list(run.val.items())[:2]:
        best = run.best.get(name)
        yield Card(
            f"Validation {name}",
            plain(value),
            "" if best in (None, value) else f"best {plain(best)}",
        )
    if "peak_rss_bytes" in run.figures:
        yield Card(
            "Memory",
            measured("peak_rss_bytes", run.figures["peak_rss_bytes"]),
            "peak of the process on the host",
        )


def _plus_minus(run: RecordedRun) -> str:
    return "" if run.spread is None else f", ± {share(run.spread)} between reports"


def _of_many(
    runs: Sequence[RecordedRun], names: Sequence[str], compared: Relative
) -> Iterator[Card]:
    counts = Counter(run.status for run in runs)
    yield Card(
        "Cells" if runs[0].kind == "cell" else "Runs",
        str(len(runs)),
        ", ".join(f"{n} {status}" for status, n in counts.items()),
    )
    whole = [number for number, run in enumerate(runs) if run.is_whole and run.records_per_s]
    if len(whole) > 1:
        title, members, words = _claim(runs, whole)
        fast = max(members, key=lambda n: runs[n].records_per_s or 0.0)
        slow = min(whole, key=lambda n: runs[n].records_per_s or 0.0)
        ratio = (runs[fast].records_per_s or 0.0) / (runs[slow].records_per_s or 1.0)
        speed = f"{rate(runs[fast].records_per_s)} records/s, {ratio:.2f} times the slowest, {names[slow]}"
        yield Card(title, names[fast], f"{speed}{words}")
    waits = [run.wait_share for run in runs if run.wait_share is not None and run.what == "train"]
    if waits:
        yield Card(
            "Waiting for data",
            share(median(waits)),
            f"of a step in the median run; {share(min(waits))} to {share(max(waits))}",
        )
    yield from _learned(runs, names)


def _claim(runs: Sequence[RecordedRun], numbers: Sequence[int]) -> tuple[str, Sequence[int], str]:
    """Return what the choice with the highest rate may be called, the numbers of its runs, and the test.

    Runs that differ in their seed alone are repeats of one choice.
    """
    choices: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for number in numbers:
        key = tuple(
            sorted((name, value) for name, value in runs[number].choices.items() if name != "seed")
        )
        choices.setdefault(key, []).append(number)
    if len(choices) < 2:
        return "Highest rate", numbers, ""
    members = list(choices.values())
    found = claim(
        [[value for number in each for value in _rates(runs[number])] for each in members]
    )
    return (
        "Fastest" if found.proved else "Highest rate",
        members[found.highest],
        f" ({found.words})",
    )


def _rates(run: RecordedRun) -> Sequence[float]:
    """Records per second in each process: the rounds of a bench, or the one of a run."""
    return list(run.rounds.values()) or [run.records_per_s or 0.0]


def _learned(runs: Sequence[RecordedRun], names: Sequence[str]) -> Iterator[Card]:
    """How many different things were learned: loaders and stores must change none of it."""
    groups = alike(runs)
    num_runs = sum(map(len, groups))
    if num_runs < 2:
        return
    if len(groups) == num_runs:  # nothing to say but that they differ
        yield from _lowest(runs, names)
    elif len(groups) == 1:
        yield Card(
            "Learned",
            "the same",
            f"all {num_runs} runs have the same training losses, to the last bit",
        )
    else:
        yield Card(
            "Learned",
            f"{len(groups)} ways",
            f"{num_runs} runs have {len(groups)} different sequences of training losses",
        )
        yield from _lowest(runs, names)


def _lowest(runs: Sequence[RecordedRun], names: Sequence[str]) -> Iterator[Card]:
    losses = {
        number: run.val["loss"]
        for number, run in enumerate(runs)
        if math.isfinite(run.val.get("loss", math.nan))
    }
    if losses:
        best = min(losses, key=lambda number: losses[number])
        yield Card("Lowest validation loss", plain(losses[best]), names[best])
