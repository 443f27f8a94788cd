"""Compile a training batch's random numbers and augmentation into few GPU kernels.

Some forty operators become a handful of kernels that read each pixel once. By default, compilers
round less often than the operators do: they fuse a product with a sum and approximate quotients.
Torch has options against that. Exponentials and powers differ whatever the options, so only
augments that are ``contracts.data.Exact`` are compiled. As a guard, the first batch of each shape
is computed both ways, and any difference turns compiling off.
"""

import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.errors import words_of

Finish = Callable[..., Batch]  # (batch, *the epoch's keys) -> the batch, augmented
EXACT = {  # the first also keeps products apart from sums
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "emulate_divison_rounding": True,  # the same in torch 2.10, spelled as it is there
}


@final
class Fused:
    """``finish``, compiled.

    If that fails or gives another number, ``tell`` gets the reason once, and the operators are
    used instead. Each shape of batch, up to eight, is compiled when it first appears. That takes
    seconds, and torch keeps the result on disk.
    """

    def __init__(self, finish: Finish, tell: Callable[[str], None]) -> None:
        from torch._inductor import list_options  # noqa: PLC0415  # takes seconds to load

        known = list_options()  # of this version of torch
        options: dict[str, Any] = {name: value for name, value in EXACT.items() if name in known}
        keywords: dict[str, Any] = {}
        if "isolate_recompiles" in inspect.signature(torch.compile).parameters:
            keywords["isolate_recompiles"] = True
        self._plain = finish
        self._tell = tell
        self._fused: Finish | None = torch.compile(
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
        if kind not in self._seen:
            self._seen.add(kind)
            return self._first(self._fused, batch, *keys)
        try:
            return self._fused(batch, *keys)
        except Exception as error:  # noqa: BLE001  # a compiler may raise anything
            self._end(_failure(error))
            return self._plain(batch, *keys)

    def _first(self, fused: Finish, batch: Batch, *keys: Tensor) -> Batch:
        """Run both. The operators go first and cache what the compiler then finds."""
        plain = self._plain(batch, *keys)
        try:
            other = fused(batch, *keys)
        except Exception as error:  # noqa: BLE001
            self._end(_failure(error))
            return plain
        if different := [name for name in plain if not _same(plain[name], other[name])]:
            self._end(f"gives other numbers in {', '.join(different)}")
        return plain

    def _end(self, reason: str) -> None:
        self._fused = None
        what = f"compiling the augmentation {reason}; it runs kernel by kernel"
        self._tell(f"note: compile=true: {what}")


def _failure(error: Exception) -> str:
    what = words_of(error).partition("Set TORCHDYNAMO_VERBOSE")[0]
    return f"is not possible ({type(error).__name__}: {what})"


def _same(plain: Tensor, fused: Tensor) -> bool:
    """Return whether two tensors hold the same numbers. NaN equals NaN."""
    if plain.dtype != fused.dtype or plain.shape != fused.shape:
        return False
    return torch.allclose(plain, fused, rtol=0, atol=0, equal_nan=plain.is_floating_point())
