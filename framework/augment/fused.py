"""A training batch's random numbers and augmentation on a GPU in few kernels: compiled by torch, used only where it gives the same numbers.

Compiled, some forty operators become a handful of kernels, each of which reads a pixel once. Compilers like to round less often than the
operators do (a product and a sum as one, a quotient by an approximation); torch's has options against that. Whether they suffice is
looked at, not believed: the first batch of each shape is done both ways, and any difference means that the operators are used.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from framework.batch import Batch

Finish = Callable[[Batch, Tensor], Batch]  # (batch, the epoch's key) -> the batch, augmented
AS_OPERATORS_DO = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
}  # the first also keeps products apart from sums


@final
class Fused:
    """``finish``, compiled. Where that fails, or gives another number, ``tell`` is told why, once, and the operators are used from then on.

    Each shape of batch is compiled at its first: seconds, kept by torch on disk.
    """

    def __init__(self, finish: Finish, tell: Callable[[str], None]) -> None:
        from torch._inductor import list_options  # noqa: PLC0415  # takes seconds to load

        known = list_options()  # of this version of torch
        options: dict[str, Any] = {name: value for name, value in AS_OPERATORS_DO.items() if name in known}
        self._plain, self._tell = finish, tell
        self._fused: Finish | None = torch.compile(finish, fullgraph=True, dynamic=False, options=options)
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, batch: Batch, key: Tensor) -> Batch:
        if self._fused is None:
            return self._plain(batch, key)
        kind = tuple((name, tensor.shape, tensor.dtype) for name, tensor in batch.items())
        if kind in self._seen:
            return self._fused(batch, key)
        self._seen.add(kind)
        return self._first(batch, key)

    def _first(self, batch: Batch, key: Tensor) -> Batch:
        """The operators come first: what they make once is there then, when the compiler looks."""
        assert self._fused is not None
        found = self._plain(batch, key)
        try:
            other = self._fused(batch, key)
            different = [name for name in found if not _same(found[name], other[name])]
            reason = f"gives other numbers in {', '.join(different)}" if different else None
        except Exception as error:  # noqa: BLE001  # whatever a compiler may raise
            what = " ".join(str(error).partition("Set TORCHDYNAMO_VERBOSE")[0].split())[:300]
            reason = f"is not possible ({type(error).__name__}: {what})"
        if reason is not None:
            self._fused = None
            self._tell(f"note: compile=true: compiling the augmentation {reason}; it runs kernel by kernel")
        return found


def _same(one: Tensor, other: Tensor) -> bool:
    """To the bit, as far as numbers go."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.allclose(one, other, rtol=0, atol=0, equal_nan=one.is_floating_point())
    )
