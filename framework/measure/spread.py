"""How far apart repeated measurements lie."""

import statistics
from collections.abc import Collection


def spread_share(values: Collection[float]) -> float:
    """Half the distance between the quartiles, as a share of the median; 0 of one value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / middle
