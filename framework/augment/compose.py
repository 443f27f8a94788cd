"""Several augments in turn, and how a batch is finished on the device with any augment.

Compiled, some forty operators become a handful of GPU kernels that read each pixel once. Compilers
round less often than operators, unless options of torch forbid it; exponentials and powers differ
anyway, so only augments that are ``exact`` are compiled. The first batch of each shape is computed
both ways, and any difference turns compiling off.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.batch import Batch, tensors
from framework.contracts.data import DRAW_KEYS, Augment, AugmentTraits, KnowsLabels, traits_of
from framework.errors import words_of
from framework.order.draws import DeviceDraws

Keyed = Callable[..., Batch]  # (batch, *the epoch's keys) -> the batch, augmented
Finish = Callable[[Batch, int], Batch]  # (batch, epoch) -> the augmented batch
EXACT = {  # the first also keeps products apart from sums
    "emulate_precision_casts": True,
    "eager_numerics.division_rounding": True,
    "emulate_divison_rounding": True,  # the same in torch 2.10, spelled as it is there
}


@final
class Compose(AugmentTraits):
    """Augments that run in the order of ``parts``, each with its part of a record's random numbers.

    A new last part therefore changes the numbers of the others unless it draws none.
    """

    def __init__(self, parts: Mapping[str, Augment]) -> None:
        if not parts:
            raise ValueError("parts = {} changes nothing: name some, or choose augment=none")
        for name, part in parts.items():
            if not callable(part):
                fix = f"add +augment@augment.parts.{name}=CHOICE"
                raise TypeError(f"parts.{name} = {part} is no augment: {fix}")
        # Each part must fit the range of the pixels that others made.
        normalized: dict[str, str] = {}  # fields, and by which part
        scaled: dict[str, str] = {}  # fields from 0 to 1, and by which part
        for place, part in flat_parts(parts):
            traits = traits_of(part)
            for field in traits.unit_fields:
                if other := normalized.get(field):
                    what = f"{place} takes pixels from 0 to 1, and {other} before it normalizes"
                    raise ValueError(f"{what} them: put it before {other}")
            for field in traits.normalized_fields:
                if other := normalized.get(field):
                    what = f"{place} normalizes {field}, and {other} before it has already"
                    fix = "set mean and std of one of them to null, or leave it out"
                    raise ValueError(f"{what}: {fix}")
            for field in traits.painted_fields:
                if max(traits.value, default=0) > 1 and field in scaled and field not in normalized:
                    what = f"{place}.value = {list(traits.value)} is above 1, and {scaled[field]}"
                    fix = "give values from 0 to 1"
                    raise ValueError(f"{what} before it makes pixels from 0 to 1: {fix}")
            normalized |= dict.fromkeys(traits.normalized_fields, place)
            scaled |= dict.fromkeys(traits.scaled_fields, place)
        self.parts = dict(parts)
        self.num_draws = 0
        for part in parts.values():
            own = [self.num_draws + column for column in traits_of(part).alternating]
            self.alternating += tuple(own)
            self.num_draws += part.num_draws
        self.exact = all(traits_of(part).exact for part in parts.values())
        self.moves_pixels = any(traits_of(part).moves_pixels for part in parts.values())

    def with_labels(self, labels: Sequence[str]) -> "Compose":
        parts = dict(self.parts)
        for name, part in parts.items():
            if isinstance(part, KnowsLabels):
                parts[name] = part.with_labels(labels)
        return Compose(parts)

    def with_layout(self, layout: torch.memory_format) -> "Compose":
        parts = dict(self.parts)
        for name, part in parts.items():
            if isinstance(part, AugmentTraits):
                parts[name] = part.with_layout(layout)
        return Compose(parts)

    def __call__(self, batch: Batch, draws: Tensor | None) -> Batch:
        start = 0
        for part in self.parts.values():
            own = draws
            if draws is not None:
                own = draws[:, start : start + part.num_draws]
            batch = part(batch, own)
            start += part.num_draws
        return dict(batch)


def flat_parts(parts: Mapping[str, Augment], place: str = "parts") -> Iterator[tuple[str, Augment]]:
    """Yield the parts, and in place of a composition its own, with their places."""
    for name, part in parts.items():
        if isinstance(part, Compose):
            yield from flat_parts(part.parts, f"{place}.{name}.parts")
        else:
            yield f"{place}.{name}", part


def finish_with(
    augment: Augment, seed: int, training: bool, fuses: bool, say: Callable[[str], None]
) -> Finish:
    """Return the function that augments a batch. ``fuses`` compiles it; ``say`` prints why not."""
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
    """``finish``, compiled for each shape of batch, up to eight, when it first appears.

    If that fails or gives another number, ``tell`` gets the reason once, and the operators are
    used instead. Compiling takes seconds, and torch keeps the result on disk.
    """

    def __init__(self, finish: Keyed, tell: Callable[[str], None]) -> None:
        from torch._inductor import list_options  # noqa: PLC0415  # takes seconds to load

        from framework.augment import normalize, random_erasing  # noqa: PLC0415

        # Beside their definitions, the mark would load the compiler for every command.
        for function in (normalize.constant_tables, random_erasing.constant_paint):
            torch.compiler.assume_constant_result(function)
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
        different: list[str] = []
        for name, own in plain.items():
            other = fused[name]
            is_same = own.dtype == other.dtype and own.shape == other.shape
            nans = own.is_floating_point()  # NaN equals NaN
            if not is_same or not torch.allclose(own, other, rtol=0, atol=0, equal_nan=nans):
                different.append(name)
        if different:
            self._end(f"gives other numbers in {', '.join(different)}")
        return plain

    def _end(self, reason: str) -> None:
        self._fused = None
        what = f"compiling the augmentation {reason}; it runs kernel by kernel"
        self._tell(f"note: compile=true: {what}")
