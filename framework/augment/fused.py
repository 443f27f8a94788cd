"""A training batch's random numbers and augmentation on a GPU in few kernels: compiled by torch, to the same numbers.

Compiled, some forty operators become a handful of kernels, each of which reads a pixel once. Compilers like to round less often than the
operators do (a product and a sum as one, a quotient by an approximation); torch's has options against that. Only augments that say they
are ``exact`` (``contracts.Augment``) are compiled, since exponentials and powers differ whatever the options. And the first batch
of each shape is done both ways: any difference means that the operators are used.
"""

import inspect
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.errors import words_of

Finish = Callable[[Batch, Tensor], Batch]  # (batch, the epoch's key) -> the batch, augmented
AS_OPERATORS_DO = {
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
}  # the first also keeps products apart from sums


@final
class Fused:
    """``finish``, compiled. Where that fails, or gives another number, ``tell`` is told why, once, and the operators are used from then on.

    Each shape of batch is compiled at its first, up to eight of them: seconds, kept by torch on disk.
    """

    def __init__(self, finish: Finish, tell: Callable[[str], None]) -> None:
        from torch._inductor import list_options  # noqa: PLC0415  # takes seconds to load

        known = list_options()  # of this version of torch
        options: dict[str, Any] = {
            name: value for name, value in AS_OPERATORS_DO.items() if name in known
        }
        words: dict[str, Any] = (
            {"isolate_recompiles": True}
            if "isolate_recompiles" in inspect.signature(torch.compile).parameters
            else {}
        )
        self._plain, self._tell = finish, tell
        self._fused: Finish | None = torch.compile(
            finish, fullgraph=True, dynamic=False, options=options, **words
        )
        self._seen: set[tuple[Any, ...]] = set()

    def __call__(self, batch: Batch, key: Tensor) -> Batch:
        if self._fused is None:
            return self._plain(batch, key)
        if len(tensors(batch)) < len(
            batch
        ):  # the compiler would compile anew for every other string
            self._end("is not possible with values that are no tensors")
            return self._plain(batch, key)
        kind = tuple(
            (name, tensor.dtype, tensor.shape, tensor.stride()) for name, tensor in batch.items()
        )
        if kind not in self._seen:
            self._seen.add(kind)
            return self._first(self._fused, batch, key)
        try:
            return self._fused(batch, key)
        except Exception as error:  # noqa: BLE001  # whatever a compiler may raise: it compiles again where something outside has changed
            self._end(_failure(error))
            return self._plain(batch, key)

    def _first(self, fused: Finish, batch: Batch, key: Tensor) -> Batch:
        """The operators come first: what they make once is there then, when the compiler looks."""
        found = self._plain(batch, key)
        try:
            other = fused(batch, key)
        except Exception as error:  # noqa: BLE001
            self._end(_failure(error))
            return found
        if different := [name for name in found if not _same(found[name], other[name])]:
            self._end(f"gives other numbers in {', '.join(different)}")
        return found

    def _end(self, reason: str) -> None:
        self._fused = None
        self._tell(
            f"note: compile=true: compiling the augmentation {reason}; it runs kernel by kernel"
        )


def _failure(error: Exception) -> str:
    what = words_of(error).partition("Set TORCHDYNAMO_VERBOSE")[0]
    return f"is not possible ({type(error).__name__}: {what})"


def _same(one: Tensor, other: Tensor) -> bool:
    """To the bit, as far as numbers go."""
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and torch.allclose(one, other, rtol=0, atol=0, equal_nan=one.is_floating_point())
    )
