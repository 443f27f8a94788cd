"""Compare runs: name them, list their differences, and compute how much longer each one takes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from framework.cli.run_records import UNKNOWN, chosen, varying
from framework.commands.report.recorded_runs import RecordedRun
from framework.measure.statistics import median
from framework.system.run_dir import shown

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


class Look(NamedTuple):
    """The numbers of a run's color and dash in a chart."""

    color: int
    dash: int = 0


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


def looks(
    runs: Sequence[RecordedRun], names: Sequence[str], num_colors: int, num_dashes: int
) -> tuple[list[Look], list[tuple[str, Look]]]:
    """Return a look for each run, and the entries of the legend.

    Each of a few runs has its own color. Of many runs the color shows one choice and the dash
    another; the legend is empty if no choice has few enough values.
    """
    numbers = range(len(runs))
    if len(runs) <= num_colors:
        each = [Look(number) for number in numbers]
        return each, list(zip(names, each, strict=True))
    values = {key: list(dict.fromkeys(chosen(run, key) for run in runs)) for key in varying(runs)}
    few = [key for key in values if len(values[key]) <= num_colors]
    if not few:
        return [Look(n % num_colors, n // num_colors % num_dashes) for n in numbers], []
    by_color = max(few, key=lambda key: len(values[key]))
    colors = [values[by_color].index(chosen(run, by_color)) for run in runs]
    legend = [(f"{by_color}={value}", Look(n)) for n, value in enumerate(values[by_color])]
    dashes = [0] * len(runs)
    few = [key for key in values if key != by_color and len(values[key]) <= num_dashes]
    if few:
        by_dash = few[0]
        dashes = [values[by_dash].index(chosen(run, by_dash)) for run in runs]
        legend += [(f"{by_dash}={value}", Look(-1, n)) for n, value in enumerate(values[by_dash])]
    return [Look(*pair) for pair in zip(colors, dashes, strict=True)], legend
