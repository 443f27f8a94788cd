"""No augmentation, for data that is ready as it is stored."""

from collections.abc import Sequence
from typing import final

from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.data import AugmentTraits


@final
class NoAugment(AugmentTraits):
    """An augment that changes nothing."""

    num_draws = 0
    exact = True

    def with_labels(self, labels: Sequence[str]) -> "NoAugment":
        return self

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        return dict(batch)
