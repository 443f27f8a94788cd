"""Runs beside each other: what to call them, what differs, and how much longer one takes than another."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from framework.commands.report.json_values import shown
from framework.commands.report.recorded_run import RecordedRun
from framework.measure.statistics import median

NO_WORDS = ("true", "false", "null", "none")  # values that say nothing without their key
ABSENT = "not set"
UNKNOWN = "default"  # of a key that was not given, and whose value is not recorded


class Difference(NamedTuple):
    """Of one key: every value, and the numbers of the runs that have it."""

    key: str
    values: list[tuple[str, list[int]]]


class Relative(NamedTuple):
    """``times``: time per record of each run, as a multiple of run ``base``'s; None where no rate is known."""

    base: int | None
    times: list[float | None]


class Look(NamedTuple):
    """How a run is drawn: the numbers of its color and its dash."""

    color: int
    dash: int = 0


def varying(runs: Sequence[RecordedRun]) -> list[str]:
    """The keys that were not chosen alike for all."""
    keys = dict.fromkeys(key for run in runs for key in run.choices)
    return [key for key in keys if len({chosen(run, key) for run in runs}) > 1]


def chosen(run: RecordedRun, key: str) -> str:
    """What ``run`` has for ``key``, also where it was not asked for."""
    if key in run.choices:
        return run.choices[key]
    for place in (f"{key}.source._target_", f"{key}._target_"):
        if place in run.config:
            return shown(str(run.config[place]).split(".")[-2:][0])
    return shown(run.config[key]) if key in run.config else UNKNOWN


def labels(runs: Sequence[RecordedRun]) -> list[str]:
    """A name for each run, all different: what was chosen for it that others did not choose, else its directory's."""
    keys = varying(runs)
    names = [
        " · ".join(_word(key, chosen(run, key)) for key in keys if chosen(run, key) != UNKNOWN)
        or run.name
        for run in runs
    ]
    names = [
        name if names.count(name) == 1 or not keys else f"{name} ({run.name})"
        for name, run in zip(names, runs, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name} #{number}" for number, name in enumerate(names)
    ]


def _word(key: str, value: str) -> str:
    return value if value[:1].isalpha() and value not in NO_WORDS else f"{key}={value}"


def differences(tables: Sequence[Mapping[str, Any]], everything: bool = False) -> list[Difference]:
    """What differs between ``tables``, one per run; or all of it. An empty one, of which nothing is known, is not compared."""
    keys = sorted({key for table in tables for key in table})
    found: list[Difference] = []
    for key in keys:
        values: dict[str, list[int]] = {}
        for number, table in enumerate(tables):
            if table:
                values.setdefault(shown(table[key]) if key in table else ABSENT, []).append(number)
        if everything or len(values) > 1:
            found.append(Difference(shown(key), list(values.items())))
    return found


def relative(runs: Sequence[RecordedRun], to: str) -> Relative:
    """``to``: ``first`` (the first that finished) or ``slowest``. Runs that did not finish are compared only where none did."""
    rates = [run.records_per_s for run in runs]
    known = [number for number, rate in enumerate(rates) if rate]
    eligible = [number for number in known if runs[number].is_whole] or known
    if not eligible:
        return Relative(None, [None] * len(runs))
    base = eligible[0] if to == "first" else min(eligible, key=lambda number: rates[number] or 0.0)
    return Relative(base, [_ratio(runs[base], run) for run in runs])


def _ratio(base: RecordedRun, run: RecordedRun) -> float | None:
    """Time per record as a multiple of the base's. Of a bench the median over its rounds: a slow minute is slow for all cells of its round."""
    shared = run.rounds if run.place == base.place else {}
    ratios = [
        base.rounds[number] / rate for number, rate in shared.items() if number in base.rounds
    ]
    if ratios:
        return median(ratios)
    return (
        base.records_per_s / run.records_per_s if base.records_per_s and run.records_per_s else None
    )


def alike(runs: Sequence[RecordedRun]) -> list[list[int]]:
    """Numbers of the runs with the very same training losses at the same steps, in groups; those without any are left out."""
    groups: dict[bytes, list[int]] = {}
    for number, run in enumerate(runs):
        curve = run.curves.get(("train", "loss"))
        if curve is not None and len(curve.values):
            groups.setdefault(curve.steps.tobytes() + curve.values.tobytes(), []).append(number)
    return list(groups.values())


def looks(
    runs: Sequence[RecordedRun], names: Sequence[str], num_colors: int, num_dashes: int
) -> tuple[list[Look], list[tuple[str, Look]]]:
    """A look for each run, and the legend. Few runs have a color each; of many, the color tells one choice and the dash another.

    The legend is empty where there are too many to tell apart.
    """
    if len(runs) <= num_colors:
        each = [Look(number) for number in range(len(runs))]
        return each, list(zip(names, each, strict=True))
    values = {key: list(dict.fromkeys(chosen(run, key) for run in runs)) for key in varying(runs)}
    by_color = max(
        (key for key in values if len(values[key]) <= num_colors),
        key=lambda key: len(values[key]),
        default=None,
    )
    by_dash = next(
        (key for key in values if key != by_color and len(values[key]) <= num_dashes), None
    )
    if by_color is None:
        return [
            Look(number % num_colors, number // num_colors % num_dashes)
            for number in range(len(runs))
        ], []
    each = [
        Look(
            values[by_color].index(chosen(run, by_color)),
            values[by_dash].index(chosen(run, by_dash)) if by_dash else 0,
        )
        for run in runs
    ]
    legend = [
        (f"{by_color}={value}", Look(number)) for number, value in enumerate(values[by_color])
    ]
    legend += (
        [(f"{by_dash}={value}", Look(-1, number)) for number, value in enumerate(values[by_dash])]
        if by_dash
        else []
    )
    return each, legend
