"""Systematic sampling: an epoch has each record as often as its weight says, as evenly as possible.

The ``num_places`` slots of an epoch lie evenly on a line, on which each group of records with equal
weights has an interval. With one random shift per epoch, slot ``s`` lies at ``s + shift``. So each
group gets its expected number of slots, rounded down or up. Inside a group, the slots go to its
records in random order, again and again, so that this holds for each record, too.

Each time that a record comes in an epoch, random transforms and augments change it in another way.

Source: Madow, "On the theory of systematic sampling", 1949.
"""

from dataclasses import dataclass
from typing import final
from zlib import crc32

import torch
from torch import Tensor

from framework.order.draws import IN_GROUP, SHIFT, key_of
from framework.order.permutation import bijection_at

ROUNDING = 1e-6  # how much a sum of weights may be too small
_BITS = 53  # of a double's mantissa


@final
@dataclass(frozen=True)
class Sampling:
    """The intervals of the groups of records with equal weights."""

    num_places: int  # slots of an epoch
    ends: Tensor  # where the interval of each group ends, in slots: float64 [num_groups]
    members: Tensor  # places among the records in use, group by group: int64 [num_used]
    starts: Tensor  # where each group begins in ``members``, and the end: int64 [num_groups + 1]

    @property
    def identity(self) -> dict[str, int]:
        """What decides the records, besides the seed."""
        ends = crc32(self.ends.numpy().tobytes())
        return {"sampling": crc32(self.members.numpy().tobytes(), ends)}

    def drawn(self, slots: Tensor, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Return the records of ``slots`` (int64 [n], from 0, in random order), and their times.

        They are places among the records in use, and which of its times in the epoch it is, from 0,
        in any order: both int64 [n].
        """
        shift = (key_of(seed, epoch, SHIFT) & ((1 << _BITS) - 1)) / (1 << _BITS)
        groups = torch.searchsorted(self.ends, slots + shift, right=True)
        groups = groups.clamp(max=len(self.ends) - 1)  # the last end may be rounded down
        begins = torch.cat([self.ends.new_zeros(1), self.ends])[groups]
        turns = slots - (begins - shift).ceil().long()  # in its group, from 0
        sizes = self.starts.diff()
        if len(sizes) == len(self.members):
            return self.members[groups], turns
        inside = torch.zeros_like(slots)
        for group in groups[sizes[groups] > 1].unique().tolist():
            here = groups == group
            size = int(sizes[group])
            key = key_of(seed, epoch, IN_GROUP, group)
            inside[here] = bijection_at(turns[here] % size, size, key)
        return self.members[self.starts[groups] + inside], turns // sizes[groups]


def sampling(groups: Tensor, weights: Tensor, num_places: int | None) -> Sampling:
    """Return how records come by weight.

    Args:
        groups: The number of each used record's group, from 0: int64 [num_used].
        weights: Of a record of each group, 0 or more, not all 0: float64 [num_groups].
        num_places: Of an epoch; None: the sum of all weights, rounded down. A weight is then the
            expected number of times.
    """
    if num_places is not None:  # shares: no sum of them may overflow, or round to nothing
        weights = weights / weights.max()
    is_drawn = weights > 0
    places = is_drawn[groups].nonzero().squeeze(1)
    groups = (is_drawn.cumsum(0) - 1)[groups[places]]
    weights = weights[is_drawn]
    members = places[torch.argsort(groups, stable=True)]
    sizes = torch.bincount(groups, minlength=len(weights))
    ends = (weights * sizes).cumsum(0)
    starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    if num_places is None:
        return Sampling(int(ends[-1] + ROUNDING), ends, members, starts)
    return Sampling(num_places, ends * (num_places / ends[-1]), members, starts)
