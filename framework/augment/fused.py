"""Finish batches on the device: draw their random numbers, augment them, and compile both.

Some forty operators become a handful of GPU kernels that read each pixel once. Compilers round less
often than operators, unless options of torch forbid it; exponentials and powers differ anyway, so
only augments that are ``exact`` are compiled. The first batch of each shape is computed both ways,
and any difference turns compiling off.
"""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.contracts.data import DRAW_KEYS, Augment, traits_of
from framework.errors import words_of
from framework.order.draws import DeviceDraws

Keyed = Callable[..., Batch]  # (batch, *the epoch's keys) -> the batch, augmented
Finish = Callable[[Batch, int], Batch]  # (batch, epoch) -> the augmented batch
EXACT = {  # the first also keeps products apart from sums
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "emulate_divison_rounding": True,  # the same in torch 2.10, spelled as it is there
}


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


@final
class Fused:
    """``finish``, compiled.

    If that fails or gives another number, ``tell`` gets the reason once, and the operators are
    used instead. Each shape of batch, up to eight, is compiled when it first appears. That takes
    seconds, and torch keeps the result on disk.
    """

    def __init__(self, finish: Keyed, tell: Callable[[str], None]) -> None:
        from torch._inductor import list_options  # noqa: PLC0415  # takes seconds to load

        known = list_options()  # of this version of torch
        options: dict[str, Any] = {name: value for name, value in EXACT.items() if name in known}
        keywords: dict[str, Any] = {}
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
            keywords["isolate_recompiles"] = True
        self._plain = finish
        self._tell = tell
        self._fused: Keyed | None = torch.compile(
            finish, fullgraph=True, dynamic=False, options=options, **keywords
        )
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, batch: Batch, *keys: Tensor) -> Batch:
        if self._fused is None:
            return self._plain(batch, *keys)
        if len(tensors(batch)) < len(batch):  # it would compile again for every other string
            self._end("is not possible with values that are no tensors")
            return self._plain(batch, *keys)
        kind = tuple((name, t.dtype, t.shape, t.stride()) for name, t in batch.items())
        # The operators go first and cache what the compiler then finds.
        plain = None if kind in self._seen else self._plain(batch, *keys)
        self._seen.add(kind)
        try:
            fused = self._fused(batch, *keys)
        except Exception as error:  # noqa: BLE001  # a compiler may raise anything
            what = words_of(error).partition("Set TORCHDYNAMO_VERBOSE")[0]
            self._end(f"is not possible ({type(error).__name__}: {what})")
            return self._plain(batch, *keys) if plain is None else plain
        if plain is None:
            return fused
        if different := [name for name in plain if not _same(plain[name], fused[name])]:
            self._end(f"gives other numbers in {', '.join(different)}")
        return plain

    def _end(self, reason: str) -> None:
        self._fused = None
        what = f"compiling the augmentation {reason}; it runs kernel by kernel"
        self._tell(f"note: compile=true: {what}")


def _same(plain: Tensor, fused: Tensor) -> bool:
    """Return whether two tensors hold the same numbers. NaN equals NaN."""
    if plain.dtype != fused.dtype or plain.shape != fused.shape:
        return False
    return torch.allclose(plain, fused, rtol=0, atol=0, equal_nan=plain.is_floating_point())
