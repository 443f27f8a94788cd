"""Numbers as text: three significant digits and a unit."""

import math

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


def rate(per_s: float | None) -> str:
    """Return records per second."""
    if per_s is None:
        return NONE
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def share(value: float | None) -> str:
    """Return a fraction of a whole in percent."""
    return NONE if value is None else f"{100 * value:.1f} %"


def times(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}\N{MULTIPLICATION SIGN}"


def plain(value: float | None) -> str:
    """Return a number without a unit: a whole number in full, any other with four digits."""
    if value is None:
        return NONE
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def seconds(value: float | None) -> str:
    """Return a duration in the unit that suits it."""
    if value is None or not math.isfinite(value):
        return NONE
    unit_s, name = time_unit(value)
    return f"{value / unit_s:.3g} {name}"


def time_unit(longest_s: float) -> tuple[float, str]:
    """Return the unit for durations up to ``longest_s`` as (seconds in it, its name)."""
    return next((unit_s, name) for least_s, unit_s, name in TIMES if longest_s >= least_s)


def size(num_bytes: float | None) -> str:
    if num_bytes is None or not math.isfinite(num_bytes):
        return NONE
    power = min(len(BYTES) - 1, int(math.log(max(1.0, abs(num_bytes)), 1024)))
    return f"{num_bytes / 1024**power:.3g} {BYTES[power]}"


def measured(name: str, value: float | None) -> str:
    """Return ``value`` in the unit that ``name`` ends with: ``_s``, ``_bytes``, ``_share``."""
    if name.endswith("_bytes"):
        return size(value)
    if name.endswith("_share"):
        return share(value)
    if name.endswith("_s") and not name.endswith("per_s"):
        return seconds(value)
    return plain(value)
