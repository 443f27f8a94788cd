"""The choice ``order=balanced``: draw every class equally often."""

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch

from framework.errors import ConfigError
from framework.order.batches import Order, RecordFacts
from framework.order.draws import sampling


@final
@dataclass(frozen=True)
class BalancedOrder:
    """Draws each class equally often in training. An epoch draws as many records as are in use."""

    field: str  # with each record's class; classes without records are ignored
    ignore_index: int  # of labels that are no class; their records are not drawn

    def order(self, order: Order, facts: RecordFacts, training: bool) -> Order:
        """Return ``order`` with balanced classes.

        ConfigError C200 for a field without a number per record, C202 if no record has a class.
        """
        if not training:
            return order
        labels = facts.values(self.field)[order.used().numpy()]
        classes, groups, counts = np.unique(labels, return_inverse=True, return_counts=True)
        weights = torch.from_numpy((classes != self.ignore_index) / counts)
        if not weights.any():
            fix = "give a field with classes"
            raise ConfigError(202, f"order.field = {self.field}", "no record has a class", fix)
        drawn = sampling(torch.from_numpy(groups.reshape(-1)), weights, order.num_used)
        return replace(order, sampling=drawn)
