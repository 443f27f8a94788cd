"""The few figures at the top of the page."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from framework.cli.units import measured, plain, rate, seconds, share
from framework.commands.report.compare_runs import (
    MACHINE,
    alike,
    is_comparable,
    labels,
    without_seed,
)
from framework.commands.report.recorded_run import RecordedRun
from framework.measure.statistics import NO_CLAIM, Claim, claim, median, spread_share


class Card(NamedTuple):
    """One figure: a large ``value`` with a line of ``detail`` below it."""

    title: str
    value: str
    detail: str


def cards(runs: Sequence[RecordedRun], names: Sequence[str]) -> list[Card]:
    """Return the figures of a single run, or what sets several runs apart."""
    return list(_of_one(runs[0]) if len(runs) == 1 else _of_many(runs, names))


def _of_one(run: RecordedRun) -> Iterator[Card]:
    ended = f"{plain(run.figures.get('steps', 0))} steps in {seconds(run.figures.get('wall_s'))}"
    yield Card("Status", run.status, run.reason or ended)
    detail = "records per second"
    if run.spread:
        detail += f", {run.spread} between reports"
    yield Card("Speed", rate(run.records_per_s), detail)
    if run.wait_share is not None:
        yield Card("Waiting for data", share(run.wait_share), f"of a step of {seconds(run.step_s)}")
    if run.ranks and run.ranks.late:
        late = run.ranks.late
        lost = f"of the run lost by the others, in {late.span} of rank {late.rank}"
        yield Card("Waiting for a rank", share(late.lost_share), lost)
    for name, value in list(run.val.items())[:2]:
        yield Card(f"Validation {name}", plain(value), run.best_of(name))
    if "peak_rss_bytes" in run.figures:
        peak = measured("peak_rss_bytes", run.figures["peak_rss_bytes"])
        yield Card("Memory", peak, "peak of the process on the host")


def _of_many(runs: Sequence[RecordedRun], names: Sequence[str]) -> Iterator[Card]:
    counts = Counter(run.status for run in runs)
    what = {"cell": "Cells", "run": "Runs"}[runs[0].kind]
    yield Card(what, str(len(runs)), ", ".join(f"{n} {status}" for status, n in counts.items()))
    rates = {n: run.records_per_s for n, run in enumerate(runs) if run.is_whole}
    known = {number: per_s for number, per_s in rates.items() if per_s}
    if len(known) > 1 and is_comparable([runs[number] for number in known]):
        yield _speed(runs, known)
    waits = [run.wait_share for run in runs if run.wait_share is not None and run.what == "train"]
    if waits:
        text = f"of a step in the median run; {share(min(waits))} to {share(max(waits))}"
        yield Card("Waiting for data", share(median(waits)), text)
    yield from _learned(runs, names)


class _Process(NamedTuple):
    """A sample of the test: a round of a bench, or a run."""

    rate: float
    load: float  # cores that other programs kept busy
    when: float


def _speed(runs: Sequence[RecordedRun], known: Mapping[int, float]) -> Card:
    """Return the fastest choice if the test proves it, else that no difference can be claimed.

    ``known`` has the rates of the runs that can be compared, by number.
    """
    choices = _choices([runs[number] for number in known])
    members = [[process for run in each for process in _processes(run)] for each in choices]
    rates, loads, times = (
        [[process[column] for process in each] for each in members] for column in range(3)
    )
    spread = max(map(spread_share, rates))
    repeats = f", repeats differ by \N{PLUS-MINUS SIGN} {share(spread)}" if spread else ""
    if len(choices) < 2:
        detail = f"records per second, median of {len(known)} runs of one choice{repeats}"
        return Card("Speed", rate(median(known.values())), detail)
    return _compared(
        [without_seed(each[0]) for each in choices],
        repeats,
        claim(rates, loads, times),
    )


def _compared(choices: Sequence[RecordedRun], repeats: str, verdict: Claim) -> Card:
    """Return the card of several choices, by their medians. ``choices`` has a run of each."""
    names = labels(choices)
    low, high = min(verdict.medians), max(verdict.medians)
    fast, slow = names[verdict.highest], names[verdict.medians.index(low)]
    if verdict.proved:
        detail = f"{rate(high)} records/s, {high / low:.2f} times the slowest, {slow}"
        return Card("Fastest", fast, f"{detail}{repeats} ({verdict.words})")
    detail = f"{rate(low)} to {rate(high)} records/s, the highest in {fast}"
    return Card("Speed", NO_CLAIM, f"{detail}{repeats} ({verdict.words})")


def _choices(runs: Sequence[RecordedRun]) -> list[list[RecordedRun]]:
    """Group the runs that are repeats: they differ only in their seed, and have the same code."""
    groups: dict[str, list[RecordedRun]] = {}
    for run in runs:
        code = {name: fact for name, fact in run.facts.items() if not name.startswith(MACHINE)}
        same = [dict(without_seed(run).choices), code]
        groups.setdefault(json.dumps(same, sort_keys=True, default=str), []).append(run)
    return list(groups.values())


def _processes(run: RecordedRun) -> list[_Process]:
    load = run.resources.get("usage.others_cpu_cores", 0.0)
    rates = list(run.rounds.values()) or [run.records_per_s or 0.0]
    return [_Process(each, load, run.began_s) for each in rates]


def _learned(runs: Sequence[RecordedRun], names: Sequence[str]) -> Iterator[Card]:
    """Tell whether runs learned the same, since loaders and stores must not change the losses."""
    groups = alike(runs)
    num_runs = sum(map(len, groups))
    if num_runs < 2:
        return
    if len(groups) == 1:
        same = f"all {num_runs} runs have the same training losses, to the last bit"
        yield Card("Learned", "the same", same)
        return
    if len(groups) < num_runs:
        different = f"{num_runs} runs have {len(groups)} different sequences of training losses"
        yield Card("Learned", f"{len(groups)} ways", different)
    losses = [(_loss(run), name) for run, name in zip(runs, names, strict=True)]
    losses = [(loss, name) for loss, name in losses if math.isfinite(loss)]
    if losses:
        loss, name = min(losses, key=itemgetter(0))
        yield Card("Lowest validation loss", plain(loss), name)


def _loss(run: RecordedRun) -> float:
    """Return the loss of a run's first validation set."""
    means = (mean for name, mean in run.val.items() if name.rpartition(".")[2] == "loss")
    return next(means, math.nan)
