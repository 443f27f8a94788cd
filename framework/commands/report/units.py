"""Figures in words: three digits that count, and a unit."""

import math

NONE = "\N{EN DASH}"
BYTES = ("B", "KiB", "MiB", "GiB", "TiB")
TIMES = ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def rate(per_s: float | None) -> str:
    """Records per second."""
    return NONE if per_s is None else f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def share(value: float | None) -> str:
    """Of a whole, in percent."""
    return NONE if value is None else f"{100 * value:.1f} %"


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}\N{MULTIPLICATION SIGN}"


def plain(value: float | None) -> str:
    """A number without a unit: a whole one as it is, others with four digits."""
    if value is None or not math.isfinite(value):
        return NONE if value is None else str(value)
    return f"{value:,.0f}" if value == round(value) and abs(value) < 1e15 else f"{value:.4g}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it."""
    if value is None or not math.isfinite(value):
        return NONE
    size, unit = time_unit(value)
    return f"{value / size:.3g} {unit}"


def time_unit(longest_s: float) -> tuple[float, str]:
    """(seconds in a unit, its name): the unit to tell durations up to ``longest_s`` in."""
    least = 2.0  # of a unit: 90 s, not 1.5 min
    return next((unit for unit in TIMES[:2] if longest_s >= least * unit[0]), None) or next(
        (unit for unit in TIMES[2:] if longest_s >= unit[0]), TIMES[-1]
    )


def size(num_bytes: float | None) -> str:
    if num_bytes is None or not math.isfinite(num_bytes):
        return NONE
    power = min(len(BYTES) - 1, int(math.log(max(1.0, abs(num_bytes)), 1024)))
    return f"{num_bytes / 1024**power:.3g} {BYTES[power]}"


def measured(name: str, value: float | None) -> str:
    """As the end of ``name`` says: ``_s``, ``_bytes``, ``_share``; else plain."""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_share"):
        return share(value)
    return seconds(value) if name.endswith("_s") and not name.endswith("per_s") else plain(value)
