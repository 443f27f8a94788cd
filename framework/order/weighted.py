"""``order=weighted``: each record as often as its weight says."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

import numpy as np
import torch

from framework.errors import ConfigError, words_of
from framework.order.batches import Order, RecordFacts
from framework.order.draws import sampling

FIX = "give one number of at least 0 per record, not all 0"


@final
@dataclass(frozen=True)
class WeightedOrder:
    """Draws records by weight in training. An epoch has as many records as the data.

    ConfigError C202 unless either attribute is given.
    """

    field: str | None  # with each record's weight
    file: str | None  # with a weight per record of the training data: .npy, or a number per line

    def __post_init__(self) -> None:
        if (self.field is None) == (self.file is None):
            fix = "give order.field=FIELD or order.file=FILE"
            raise ConfigError(202, "order = weighted", "needs the weights of the records", fix)

    def order(self, order: Order, facts: RecordFacts, training: bool) -> Order:
        """Return ``order`` with records by weight. ConfigError C200, C202 for what is no weight."""
        if not training:
            return order
        if self.file is None:
            where, weights = f"order.field = {self.field}", facts.values(self.field or "")
        else:
            where = f"order.file = {self.file}"
            try:
                if Path(self.file).suffix == ".npy":
                    weights = np.asarray(np.load(self.file, mmap_mode="r"))
                else:
                    lines = Path(self.file).read_text(encoding="utf-8").splitlines()
                    weights = np.array([float(line) for line in lines], np.float64)
            except (OSError, ValueError, EOFError) as error:
                raise ConfigError(202, where, f"cannot be read ({words_of(error)})", FIX) from error
        if weights.shape != (order.num_records,):
            what = f"has the shape {list(weights.shape)}, the data {order.num_records} records"
            raise ConfigError(202, where, what, FIX)
        try:
            weights = weights.astype(np.float64)
        except (TypeError, ValueError) as error:
            what = f"does not hold numbers ({words_of(error)})"
            raise ConfigError(202, where, what, FIX) from error
        is_bad = ~(np.isfinite(weights) & (weights >= 0))
        if is_bad.any():
            index = int(is_bad.argmax())
            raise ConfigError(202, where, f"record {index} has the weight {weights[index]:g}", FIX)
        return with_weights(order, weights[order.used().numpy()], where, order.num_used)


def with_weights(order: Order, weights: np.ndarray, where: str, num_places: int | None) -> Order:
    """Return ``order`` with used records by weight, float64 [num_used], which ``where`` gave.

    ``num_places`` is as in ``sampling``. ConfigError C202 if all weights are 0.
    """
    if not weights.any():
        fix = "give a record that is in use a weight above 0"
        raise ConfigError(202, where, "all weights are 0", fix)
    values, groups = np.unique(weights, return_inverse=True)
    drawn = sampling(torch.from_numpy(groups.reshape(-1)), torch.from_numpy(values), num_places)
    return replace(order, sampling=drawn)
