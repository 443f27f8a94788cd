"""The choice ``order=balanced``: draw every class equally often."""

from dataclasses import replace
from typing import final

import numpy as np
import torch

from framework.order.batches import Order, RecordFacts
from framework.order.sampling import sampling


@final
class BalancedOrder:
    """An order that draws each class equally often in training.

    An epoch draws as many records as are in use.

    Args:
        field: The field with each record's class. Classes without records are ignored.
    """

    def __init__(self, field: str) -> None:
        self.field = field

    def order(self, order: Order, facts: RecordFacts, training: bool) -> Order:
        """Return ``order`` with balanced classes.

        Raises:
            ConfigError: C200 if ``field`` does not name a field with one number per record.
        """
        if not training:
            return order
        labels = facts.values(self.field)[order.used().numpy()]
        _, groups, counts = np.unique(labels, return_inverse=True, return_counts=True)
        weights = torch.from_numpy(1.0 / counts)
        drawn = sampling(torch.from_numpy(groups.reshape(-1)), weights, order.num_used)
        return replace(order, sampling=drawn)
