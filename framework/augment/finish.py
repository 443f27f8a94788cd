"""Finish batches on the device: draw their random numbers, and augment them."""

from collections.abc import Callable
from functools import lru_cache

from torch import Tensor

from framework.augment.fused import Fused
from framework.contracts.batch import Batch
from framework.contracts.data import DRAW_KEYS, Augment, traits_of
from framework.order.draws import DeviceDraws

Finish = Callable[[Batch, int], Batch]  # (batch, epoch) -> the augmented batch


def finish_with(
    augment: Augment, seed: int, training: bool, fuses: bool, say: Callable[[str], None]
) -> Finish:
    """Return the function that augments a batch; without random numbers outside training.

    ``fuses`` compiles it for training. ``say`` prints why that was not possible.
    """
    draws = DeviceDraws(seed, augment.num_draws, traits_of(augment).alternating)
    is_random = training and draws.num_draws > 0

    def plain(batch: Batch, *keys: Tensor) -> Batch:
        numbers = None
        drawn = batch["index"]
        if DRAW_KEYS in batch:
            batch = dict(batch)
            drawn = batch.pop(DRAW_KEYS)
        if is_random:
            numbers = draws.of(drawn, *keys)
        return augment(batch, numbers)

    finish = Fused(plain, say) if training and fuses else plain
    keys_of_epoch = lru_cache(maxsize=1)(draws.keys)
    return lambda batch, epoch: finish(batch, *keys_of_epoch(epoch))
