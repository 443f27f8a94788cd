"""``order=repeat_factors``: records with rare classes come several times per epoch.

The repeat factor of a class with the frequency ``f`` (the share of records that have it) is
``max(1, sqrt(threshold / f))``, and that of a record is its classes' largest.
Source: Gupta, Dollar, Girshick, "LVIS: a dataset for large vocabulary instance segmentation", CVPR
2019, section 5.1.
"""

from dataclasses import dataclass
from typing import final

import numpy as np

from framework.order.batches import Order, RecordFacts
from framework.order.weighted import with_weights


@final
@dataclass(frozen=True)
class RepeatFactorOrder:
    """Repeats records with rare classes in training: as many as the factors' sum, rounded down."""

    field: str  # with each record's class, or a ragged one with its classes
    threshold: float  # classes that a smaller share of the records has are repeated

    def order(self, order: Order, facts: RecordFacts, training: bool) -> Order:
        """Return ``order`` with repeats. ConfigError C200 if there is no such field."""
        if not training:
            return order
        labels, lengths = facts.rows(self.field)
        factors = repeat_factors(labels, lengths, order.used().numpy(), self.threshold)
        return with_weights(order, factors, f"order.field = {self.field}", None)


def repeat_factors(
    labels: np.ndarray, lengths: np.ndarray, used: np.ndarray, threshold: float
) -> np.ndarray:
    """Return the factor of each used record, at least 1: float64 [num_used].

    ``labels`` are the classes of all records one after another, and each record has as many as
    ``lengths`` says, int64 [num_records]. Only the records ``used``, int64 [num_used], count.
    """
    _, numbers = np.unique(labels, return_inverse=True)
    records = np.repeat(np.arange(len(lengths)), lengths)
    is_used = np.zeros(len(lengths), bool)
    is_used[used] = True
    pairs = np.stack([records, numbers.reshape(-1)])[:, is_used[records]]
    of_records, classes = np.unique(pairs, axis=1)  # a class counts once per record
    frequencies = np.bincount(classes, minlength=1) / max(1, len(used))
    with np.errstate(divide="ignore"):
        per_class = np.maximum(1.0, np.sqrt(threshold / frequencies))
    factors = np.ones(len(lengths))
    np.maximum.at(factors, of_records, per_class[classes])
    return factors[used]
