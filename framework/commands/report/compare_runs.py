"""Compare runs: name them, list their differences, and compute how much longer each one takes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from framework.commands.report.recorded_run import RecordedRun
from framework.measure.statistics import median
from framework.system.json_values import shown

NO_WORDS = ("true", "false", "null", "none")  # values that say nothing without their key
ABSENT = "not set"
OURS = ("framework.", "paceline_examples.")
MACHINE = "machine."  # begins the names of facts about it
UNKNOWN = "default"  # of a key that was not typed and whose value is not recorded


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


def varying(runs: Sequence[RecordedRun]) -> list[str]:
    """Return the keys whose choice differs between the runs."""
    keys = dict.fromkeys(key for run in runs for key in run.choices)
    return [key for key in keys if len({chosen(run, key) for run in runs}) > 1]


def chosen(run: RecordedRun, key: str) -> str:
    """Return the value of ``key`` as typed, else from the configuration."""
    if key in run.choices:
        return run.choices[key]
    for place in (f"{key}.source._target_", f"{key}._target_"):
        if place in run.config:
            return shown(_choice(str(run.config[place])))
    return shown(run.config.get(key, UNKNOWN))


def _choice(target: str) -> str:
    """Return the word for a target: for ours its module, which is a choice, else its class."""
    *_, module, name = ["", *target.split(".")]
    return module if target.startswith(OURS) else name


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
    machines = [
        {key: value for key, value in run.facts.items() if key.startswith(MACHINE)}
        for run in runs
        if run.facts
    ]
    return len({str(machine) for machine in machines})


def is_comparable(runs: Sequence[RecordedRun]) -> bool:
    """Return whether runs measured the same part of training, on one machine if that is known."""
    return len({run.what for run in runs}) == 1 and num_machines(runs) < 2


def without_seed(run: RecordedRun) -> RecordedRun:
    """Return a run as if its seed had not been typed: runs that differ only in it are repeats."""
    return replace(run, choices={key: run.choices[key] for key in run.choices if key != "seed"})


def relative(runs: Sequence[RecordedRun], to: str) -> Relative:
    """Compare the times per record with the ``first`` run or the ``slowest`` one.

    If any run finished, one that finished is the base.
    """
    known = {number: run.records_per_s for number, run in enumerate(runs) if run.records_per_s}
    eligible = [number for number in known if runs[number].is_whole] or list(known)
    if not eligible:
        return Relative(None, [None] * len(runs))
    base = eligible[0]
    if to == "slowest":
        base = min(eligible, key=lambda number: known[number])
    return Relative(base, [_ratio(runs[base], run) for run in runs])


def _ratio(base: RecordedRun, run: RecordedRun) -> float | None:
    """Return the time per record relative to ``base``; None for another part of training.

    Cells of one bench are compared round by round, since a slow minute slows all cells of a round.
    """
    if run.what != base.what:
        return None
    if run.place == base.place:
        shared = run.rounds.keys() & base.rounds.keys()
        if shared:
            return median(base.rounds[number] / run.rounds[number] for number in shared)
    if not base.records_per_s or not run.records_per_s:
        return None
    return base.records_per_s / run.records_per_s


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
    if len(runs) <= num_colors:
        each = [Look(number) for number in range(len(runs))]
        return each, list(zip(names, each, strict=True))
    values = {key: list(dict.fromkeys(chosen(run, key) for run in runs)) for key in varying(runs)}
    few = [key for key in values if len(values[key]) <= num_colors]
    if not few:
        numbers = range(len(runs))
        return [Look(n % num_colors, n // num_colors % num_dashes) for n in numbers], []
    by_color = max(few, key=lambda key: len(values[key]))
    few = [key for key in values if key != by_color and len(values[key]) <= num_dashes]
    colors = [values[by_color].index(chosen(run, by_color)) for run in runs]
    legend = [(f"{by_color}={value}", Look(n)) for n, value in enumerate(values[by_color])]
    if not few:
        return [Look(color) for color in colors], legend
    by_dash = few[0]
    dashes = [values[by_dash].index(chosen(run, by_dash)) for run in runs]
    legend += [(f"{by_dash}={value}", Look(-1, n)) for n, value in enumerate(values[by_dash])]
    return [Look(*numbers) for numbers in zip(colors, dashes, strict=True)], legend
