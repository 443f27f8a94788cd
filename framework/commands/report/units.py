"""Numbers as text: three significant digits and a unit."""

import math
from collections.abc import Callable
from functools import wraps

NONE = "\N{EN DASH}"
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
# (the least duration told in this unit, seconds in the unit, its name): 90 s, not 1.5 min
TIMES = (
    (7200.0, 3600.0, "h"),
    (120.0, 60.0, "min"),
    (1.0, 1.0, "s"),
    (1e-3, 1e-3, "ms"),
    (-math.inf, 1e-6, "µs"),
)


def _or_none(word: Callable[[float], str]) -> Callable[[float | None], str]:
    """Let ``word`` return a dash for None."""

    @wraps(word)
    def text(value: float | None) -> str:
        return NONE if value is None else word(value)

    return text


def _digits(value: float) -> str:
    """Return three significant digits, or all that stand before the point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


@_or_none
def rate(per_s: float) -> str:
    return _digits(per_s)


@_or_none
def share(value: float) -> str:
    """Return a fraction of a whole in percent."""
    return f"{100 * value:.1f} %"


@_or_none
def times(value: float) -> str:
    return f"{value:.2f}\N{MULTIPLICATION SIGN}"


@_or_none
def plain(value: float) -> str:
    """Return a number without a unit: a whole number in full, any other with four digits."""
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


@_or_none
def seconds(value: float) -> str:
    """Return a duration in the unit that suits it."""
    if not math.isfinite(value):
        return NONE
    unit_s, name = time_unit(value)
    return f"{_digits(value / unit_s)} {name}"


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit for durations up to ``longest_s`` as (seconds in it, its name)."""
    return next((unit_s, name) for least_s, unit_s, name in TIMES if longest_s >= least_s)


@_or_none
def size(num_bytes: float) -> str:
    if not math.isfinite(num_bytes):
        return NONE
    power = min(len(BYTES) - 1, int(math.log(max(1.0, abs(num_bytes)), 1024)))
    return f"{_digits(num_bytes / 1024**power)} {BYTES[power]}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: 1 core, 2 cores."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun}s"


def measured(name: str, value: float | None) -> str:
    """Return ``value`` in the unit that ``name`` ends with: ``_s``, ``_bytes``, ``_share``."""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_share"):
        return share(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return seconds(value)
    return plain(value)
