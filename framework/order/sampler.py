"""``order._target_=mine.Sampler``: batches of records that a sampler of the user's own draws.

Each rank asks its own copy for the global batches, with the same random numbers, and takes its
share of each. Rank 0 could ask for all, but then each batch would need an exchange in the thread
that reads, beside those of the step. Ranks compare a digest of their batches instead: when the data
is opened, and before each state is saved.
"""

import copy
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol, final, runtime_checkable
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from framework.errors import CheckpointError, ConfigError, DataError, DistributedError, words_of
from framework.order import draws, select
from framework.order.batches import Order, RecordFacts
from framework.system.rng import generator_mark, kept_generators, seed_host_generators
from framework.system.user_code import user_error

END: Any = object()  # there is nothing further; None may be an item, if a wrong one


@runtime_checkable
class KnowsEpoch(Protocol):
    """A capability of a sampler or Dataset: it shuffles by the epoch, as DistributedSampler."""

    def set_epoch(self, epoch: int) -> Any: ...


@runtime_checkable
class KeepsState(Protocol):
    """What can save and load its state. A sampler then continues behind its newest batch."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


def ask_first(items: Iterator[Any], at_once: bool) -> tuple[Iterator[Any], bool]:
    """Ask a sampler for its first item. Return all items, and whether all are drawn already.

    They are if ``at_once``, or if the sampler draws from the generators of the process, as the step
    does. Otherwise each is asked for when it is needed: it may depend on what was learned.
    """
    mark = generator_mark()
    first = [*islice(items, 1)]
    if at_once or mark != generator_mark():
        return iter([*first, *items]), True
    return chain(first, items), False


@final
@dataclass(frozen=True)
class SamplerOrder:
    """Takes the batches of training from a sampler of the user's own."""

    make: Callable[..., Any]  # makes the sampler
    takes: Sequence[str]  # the names of its parameters
    name: str  # its class, for messages
    gather: Callable[[Tensor], list[Tensor]] = lambda values: [values]  # those of all ranks
    packages: Sequence[str] = ()  # prefixes of the user's

    def order(self, order: Order, facts: RecordFacts, training: bool) -> Order:
        """Return ``order`` with the sampler's batches, in training alone.

        The sampler numbers the records in use from 0. ConfigError C208 for an option that it would
        ignore, another batch size, or labels that are not known; DataError D236; U100.
        """
        if not training:
            return order
        given: dict[str, Any] = {"num_records": order.num_used, "seed": order.seed}
        given["batch_size"] = order.batch_size
        if "labels" in self.takes:
            try:
                given["labels"] = facts.values(select.LABEL)[order.used().numpy()]
            except (ConfigError, IndexError) as error:
                what = "takes labels, and the data has no label for each record"
                fix = "give your Dataset 'targets', or leave the parameter out"
                raise ConfigError(208, f"order = {self.name}", what, fix) from error
        sampler = self.make(**{name: given[name] for name in self.takes if name in given})
        batches = SampledBatches(self, sampler, order)
        size, is_single = batches.first_size, batches.is_single
        lasts = ("short", "drop") if is_single else ("short",)
        if not order.shuffle or order.last not in lasts:
            where = f"shuffle = {str(order.shuffle).lower()}, last = {order.last}"
            what = f"are not used, because {self.name} decides the batches"
            raise ConfigError(208, where, what, "leave them out, or choose an order of ours")
        is_other = size != order.batch_size and "batch_size" not in self.takes
        if not is_single and (size > order.batch_size or is_other):
            what = f"{self.name} gives batches of {size} records"
            fix = f"set batch_size={size}, or let the sampler take batch_size"
            raise ConfigError(208, f"batch_size = {order.batch_size}", what, fix)
        return replace(order, sampler=batches)


class Reached(NamedTuple):
    """How far a sampler has been asked."""

    epoch: int
    step: int  # batches of the epoch so far
    num_places: int = 0  # their records
    before: int = 0  # CRC32 of all batches before the epoch
    digest: int = 0  # that of the epoch's batches so far, too
    state: Any = None  # what ``state_dict`` returned behind ``state_step`` batches, or None
    state_step: int = 0


@final
class SampledBatches:
    """The global batches of a sampler: lists of records, or single records that are cut here.

    One thread asks, ahead of the step. ``state`` is that of the batches that were trained on.
    """

    def __init__(self, choice: SamplerOrder, sampler: Any, order: Order) -> None:
        self.sampler = sampler
        self._choice, self._order = choice, order
        self._where = f"order = {choice.name}"
        self._length = 0  # 0 if it is not known
        if isinstance(sampler, Sized):
            with suppress(TypeError, NotImplementedError):
                self._length = len(sampler)
        self.num_steps = 0  # of an epoch; known with its first item
        self.is_single = False
        self._draws = False  # whether an epoch's batches are drawn at its beginning
        self._rest: Iterator[Tensor] = iter(())  # of the present epoch
        self._at = Reached(0, 0)
        self._is_open = False  # whether the sampler is inside an epoch
        self._asked_by = 0  # the thread that got the newest batch
        self._history: deque[Reached] = deque()  # behind each batch that may not be trained on yet
        self._open(0, 0)
        first = next(self._rest, END)
        if first is END:
            raise DataError(236, self._where, "gives no batch", "let it give at least one")
        self._rest = chain([first], self._rest)
        self.first_size = len(first)
        self.num_places = self._length or order.num_used
        if not self.is_single:
            self.num_places = self.num_steps * self.first_size
        self._agree(crc32(first.numpy().tobytes(), self.num_steps))

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, int]]:
        if not self._is_open or self._at[:2] != (epoch, start):
            self._open(epoch, start)
        for _ in range(start, self.num_steps):
            yield self._ask()

    def forget(self, epoch: int, step: int) -> None:
        while len(self._history) > 1 and self._history[0][:2] < (epoch, step):
            self._history.popleft()

    def state(self, epoch: int, step: int) -> dict[str, Any]:
        at = self._known(epoch, step) or Reached(epoch, step)
        is_newest = at is self._at and self._asked_by == threading.get_ident()
        if is_newest and at.state_step == step:
            at = at._replace(state=self._state())  # it may have learned something since
        self._agree(at.digest)
        return at._asdict()

    def load(self, state: Mapping[str, Any] | None, epoch: int, start: int) -> None:
        self._history.clear()
        if state is not None:
            self._history.append(Reached(**state))
        self._open(epoch, start)

    def _agree(self, digest: int) -> None:
        digests = [int(own) for own in self._choice.gather(torch.tensor([digest]))]
        for rank, other in enumerate(digests):
            if other != digests[0]:
                what = f"{self._choice.name} gives other batches than on rank 0"
                fix = "let it give whole batches that depend on the seed and the epoch, not a rank"
                raise DistributedError(107, f"rank {rank}", what, fix)

    def _known(self, epoch: int, step: int) -> Reached | None:
        return next((at for at in tuple(self._history) if at[:2] == (epoch, step)), None)

    def _open(self, epoch: int, start: int) -> None:
        """Ask for an epoch's batches from ``start`` on: by its state, or from the first one on."""
        known = self._known(epoch, start)
        before = self._at.digest if known is None else known.before
        at = Reached(epoch, 0, before=before, digest=before)
        sampler: Any = self.sampler
        with self._named_errors():
            if isinstance(self.sampler, KnowsEpoch):
                self.sampler.set_epoch(epoch)
            # After the epoch before, the sampler is there already.
            if known is not None and known is not self._at and known.state is not None:
                sampler.load_state_dict(copy.deepcopy(known.state))
                if known.state_step:
                    at = known
            if not at.step:
                at = at._replace(state=self._state())
            with kept_generators(torch.device("cpu")):
                # The same on all ranks and in every run, whatever else draws.
                seed = draws.record_seeds(torch.tensor([0]), self._order.seed, epoch)
                seed_host_generators(int(seed))
                items = self._cut(iter(sampler), at.step)
                self._rest, self._draws = ask_first(items, at_once=False)
        self._at, self._is_open = at, True
        if known is None:
            self._history.append(at)
        while self._at.step < start:
            self._ask()
        self._asked_by = 0  # the next batch may be drawn already
        if known is not None and self._at.digest != known.digest:
            what = f"gives other batches in epoch {epoch + 1} than it gave before the state"
            fix = "give it state_dict and load_state_dict, or draw by set_epoch or a seed; "
            fix += "to continue with other batches, add 'resume.allow=[order]'"
            raise CheckpointError(106, self._where, what, fix)

    def _cut(self, items: Iterator[Any], step: int) -> Iterator[Tensor]:
        """Yield the batches of an epoch from ``step`` on, and let the sampler end it."""
        first = next(items, END)
        if first is END:
            return
        items, size = chain([first], items), self._order.batch_size
        if not self.num_steps:
            self.is_single = np.ndim(first) == 0
            num = self._length or self._order.num_used
            if self._length and not self.is_single:
                size = 1
            self.num_steps = num // size if self._order.last == "drop" else -(-num // size)
        for _ in range(step, self.num_steps):
            own: Any = [*islice(items, size)] if self.is_single else next(items, END)
            if own is END or (self.is_single and not own):
                return
            yield self._places(own)
        if self._length:  # a plain loop asks until the end
            deque(islice(items, size if self.is_single else 1), maxlen=0)

    def _places(self, given: Any) -> Tensor:
        """Return a copy of a batch, which the sampler may use again. DataError D236."""
        own, num = np.asarray(given), self._order.num_used
        what = f"{str(given)[:60]} is no list of whole numbers"
        if own.ndim == 1 and own.dtype.kind in "iu" and len(own):
            if own.min() >= 0 and own.max() < num:
                return torch.from_numpy(own.astype(np.int64))
            what = f"{str(given)[:60]} names a record that is not there: there are {num}, from 0"
        raise DataError(236, self._where, what, "let it yield numbers of records")

    def _ask(self) -> tuple[Tensor, int]:
        at, self._asked_by = self._at, threading.get_ident()
        with self._named_errors():
            places = next(self._rest, END)
            if places is END:
                what = f"ended after {at.step} of {self.num_steps} batches"
                raise DataError(236, self._where, what, "correct its __iter__ or __len__")
            digest = crc32(places.numpy().tobytes(), at.digest)
            step, num_places = at.step + 1, at.num_places + len(places)
            now = at._replace(step=step, num_places=num_places, digest=digest)
            if step == self.num_steps:
                next(self._rest, END)
                self._is_open = False
                now = Reached(at.epoch + 1, 0, before=digest, digest=digest)
            if not self._draws or not now.step:
                now = now._replace(state=self._state(), state_step=now.step)
        self._at = now
        self._history.append(now)
        return places, at.num_places

    def _state(self) -> Any:
        has_state = isinstance(self.sampler, KeepsState)
        return copy.deepcopy(self.sampler.state_dict()) if has_state else None

    @contextmanager
    def _named_errors(self) -> Generator[None]:
        try:
            yield
        except (DataError, CheckpointError):
            raise
        except (Exception, SystemExit) as error:
            fix = "correct it, or choose an order of ours"
            fault = user_error(error, self._choice.packages, about=self._where, fix=fix)
            raise fault or DataError(236, self._where, words_of(error), fix) from error
