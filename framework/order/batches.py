"""Which records each batch, pass and rank gets: pure functions of (seed, epoch, step)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from framework.order import draws

MOST_AT_ONCE = 1 << 14  # places of an epoch that are computed together


def spread(num_records: int, count: int) -> Tensor:
    """Return ``count`` evenly spaced record indices, ascending: int64 [count].

    They include the first and the last record if ``count`` is at least 2.
    """
    return _spread_at(torch.arange(count), num_records, count)


def _spread_at(places: Tensor, num_records: int, count: int) -> Tensor:
    if count == num_records:
        return places
    return places * (num_records - 1) // max(1, count - 1)


class Share(NamedTuple):
    """The records of one forward pass on one rank."""

    indices: Tensor  # int64 [B]
    # The factor on the mean loss of ``indices``. Gradients are summed over the passes of a step and
    # averaged over (virtual) ranks, and so become those of the mean loss over the global batch. 0
    # marks a filler without influence on it.
    weight: float
    last: bool  # whether this is the last pass before the optimizer steps
    # What random changes depend on in place of ``indices``, if records may come several times in an
    # epoch: int64 [B]. Each time has a key of its own, and one of them is the record's number.
    keys: Tensor | None = None


class AnswersNames(Protocol):
    """What an expression may ask about the records of a data set, or about other things."""

    classes: Sequence[str]  # the names by number, which are the values of ``label``

    @property
    def names(self) -> Sequence[str]:
        """The names that ``answer`` knows."""
        ...

    def answer(self, name: str) -> np.ndarray | None:
        """Return a number or a text of each record, [num_records], or None for an unknown name.

        The names are those of fields, ``width`` and ``height`` of its image in pixels, and
        ``record``, its number in the data set.
        """
        ...


class RecordFacts(AnswersNames, Protocol):
    """What an order may ask about the records of a data set.

    ConfigError C200 for a question that the data cannot answer. It names what can be asked.
    """

    def lengths(self, name: str | None) -> Tensor:
        """Return the rows of each record in a ragged field; None: the only one. int64 [n]."""
        ...

    def values(self, name: str) -> np.ndarray:
        """Return the number of each record in a field: [num_records]."""
        ...

    def rows(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of a field of all records one after another, and how many each has."""
        ...


class GivesBatches(Protocol):
    """Batches that a sampler of the user's draws. It tells ranks that are given other ones: P107.

    ``state`` and ``load`` have the plain state behind ``step`` steps of an epoch. All ranks call
    ``state`` together. CheckpointError K106 for batches that ``load`` cannot repeat.
    """

    num_steps: int  # this and ``num_places`` as in an ``Order``
    num_places: int
    first_size: int  # the records of an epoch's first batch
    is_single: bool  # whether it draws single records, which are cut into batches

    def batches(self, epoch: int, start: int) -> Iterator[tuple[Tensor, int]]:
        """Yield places among the records in use, int64 [B], and how many came before them."""
        ...

    def state(self, epoch: int, step: int) -> dict[str, Any]: ...
    def load(self, state: Mapping[str, Any] | None, epoch: int, start: int) -> None: ...
    def forget(self, epoch: int, step: int) -> None:
        """Drop what only earlier states need. Any thread may call this."""


@dataclass(frozen=True)
class Order:
    """The order in which a data set's records are used, and how they are cut into batches.

    If P is the order of an epoch, global batch b is ``P[b*batch_size:(b+1)*batch_size]``. A global
    batch is cut into forward passes, and each pass into one share per rank.
    """

    num_records: int  # of the data set
    batch_size: int  # records per optimizer step, over all ranks and accumulation
    seed: int = 0  # of the permutations
    shuffle: bool = False  # whether each epoch has its own random order
    accumulate: int = 1  # forward passes per optimizer step
    rank: int = 0
    world_size: int = 1
    limit: int | None = None  # the number of evenly spaced records to use; None: all
    block: int | None = None  # neighbors that are shuffled as one; None: single records
    window: int = 1  # blocks whose records are shuffled together afterwards
    # What to do with an incomplete last batch: keep it (``short``), leave it out (``drop``), or
    # fill it with the first records of the epoch (``wrap``).
    last: str = "short"
    # Cut each batch into this many shares, on any number of ranks. None: one per rank and pass.
    virtual_ranks: int | None = None
    # Cuts batches of several sizes, decides what ``last`` means, and the number of batches.
    cuts: "Buckets | None" = None
    sampling: draws.Sampling | None = None  # draws records more or less than once per epoch
    selected: Tensor | None = None  # the only records that may be used, ascending: int64 [n]
    sampler: GivesBatches | None = None  # draws the batches

    @property
    def num_selected(self) -> int:
        return self.num_records if self.selected is None else len(self.selected)

    @property
    def num_used(self) -> int:
        """The number of records in use: all that are selected, or ``limit``."""
        return self.num_selected if self.limit is None else min(self.limit, self.num_selected)

    @property
    def num_places(self) -> int:
        """The number of records of an epoch: those in use, or as many as are drawn."""
        if self.sampler is not None:
            return self.sampler.num_places
        return self.num_used if self.sampling is None else self.sampling.num_places

    @property
    def num_in_batches(self) -> int:
        """The number of records in all batches of an epoch, repeated ones included."""
        if self.cuts is not None:
            return self.cuts.num_in_batches
        return self.num_places if self.last == "short" else self.num_steps * self.batch_size

    @property
    def num_steps(self) -> int:
        batches = self.cuts or self.sampler
        if batches is not None:
            return batches.num_steps
        if self.last == "drop":
            return self.num_places // self.batch_size
        return -(-self.num_places // self.batch_size)

    @property
    def smallest_batches(self) -> tuple[int, int]:
        """The fewest records of an epoch's batches over all ranks; 0 if there is no such batch.

        They are those of the batches that no ``last`` leaves out, and of the incomplete one.
        """
        if self.cuts is not None:
            return self.cuts.smallest_batches
        if self.sampler is not None and not self.sampler.is_single:
            return self.sampler.first_size, 0  # the others are not known yet
        size = self.batch_size
        whole = size if self.num_places >= size or self.last == "wrap" else 0
        short = self.num_places % size if self.last == "short" else 0
        return whole, short

    def smallest_pass(self, num_records: int) -> int:
        """Return the fewest records of a rank's forward pass over a batch of ``num_records``.

        A rank that would have none gets one, which counts nothing.
        """
        if self.virtual_ranks is not None:
            return max(1, num_records // self.virtual_ranks)
        return max(1, num_records // min(self.accumulate, num_records) // self.world_size)

    @property
    def identity(self) -> dict[str, int]:
        """What decides the records of each global batch, but not how ranks and passes cut it."""
        identity: dict[str, int] = {
            "records": self.num_in_batches,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "shuffle": int(self.shuffle),
        }
        if self.selected is not None:
            identity["selected"] = crc32(self.selected.numpy().tobytes())
        if self.cuts is not None:
            return identity | self.cuts.identity
        if self.sampler is not None:
            return identity | {"steps": self.num_steps}
        if self.last != "short":
            identity["places"] = self.num_places
        if self.sampling is not None:
            identity |= self.sampling.identity
        if self.block is not None:
            identity |= {"block": self.block, "window": self.window}
        return identity

    def used(self) -> Tensor:
        """Return the record indices in use, ascending: int64 [num_used]."""
        return self._records_at(torch.arange(self.num_used))

    def sample(self, count: int) -> Tensor:
        """Return at most ``count`` evenly spaced records of those selected: int64 [n]."""
        places = spread(self.num_selected, min(count, self.num_selected))
        return places if self.selected is None else self.selected[places]

    def _records_at(self, places: Tensor) -> Tensor:
        places = _spread_at(places, self.num_selected, self.num_used)
        return places if self.selected is None else self.selected[places]

    def shares(self, epoch: int, start: int = 0) -> Iterator[Share]:
        """Yield this rank's shares of an epoch, beginning with step ``start``.

        All ranks get the same number of shares, so that they always communicate at the same time.
        A batch is cut into passes first. So the records of a pass, and with them the statistics of
        synchronized batch norm, do not depend on the number of ranks.
        """
        count = self.virtual_ranks or self.world_size
        # Of virtual ranks, each rank has the shares of some that are consecutive.
        first, end = (rank * count // self.world_size for rank in (self.rank, self.rank + 1))
        for batch in self._batches(epoch, start):
            if count == 1 and self.accumulate == 1:
                yield self._share(batch, 1.0, True)  # the usual case, without the 10 us of cutting
                continue
            passes = [batch]
            if self.virtual_ranks is None:
                passes = batch.tensor_split(min(self.accumulate, len(batch)))
            cuts = [(part, number) for part in passes for number in range(first, end)]
            for place, (part, number) in enumerate(cuts, 1):
                mine = part[number::count]
                weight = len(mine) * count / len(batch)
                if not len(mine):
                    # A filler, whose gradients have the weight 0. Ranks get different records, so
                    # that the statistics of batch norm do not prefer one.
                    mine = part[number % len(part)].reshape(1)
                yield self._share(mine, weight, place == len(cuts))

    def shares_on(self, epoch: int, start: int, steps: int) -> Iterator[tuple[int, Share]]:
        """Yield this rank's shares of ``steps`` steps, each with its epoch, over ends of epochs."""
        while steps > 0:
            for share in self.shares(epoch, start):
                yield epoch, share
                steps -= share.last
                if not steps:
                    return
            epoch, start = epoch + 1, 0

    def _share(self, keys: Tensor, weight: float, last: bool) -> Share:
        if self.sampling is None and self.sampler is None:
            return Share(keys, weight, last)
        return Share(keys % self.num_records, weight, last, keys)

    def _batches(self, epoch: int, start: int) -> Iterator[Tensor]:
        if self.cuts is not None:
            for step in range(start, self.cuts.num_steps):
                places = self.cuts.batch(step, self.seed, epoch, self.shuffle)
                yield self._records_at(places)
            return
        if self.sampler is not None:
            for places, num_before in self.sampler.batches(epoch, start):
                times = torch.arange(num_before, num_before + len(places))
                yield self._records_at(places) + times * self.num_records
            return
        most = max(1, MOST_AT_ONCE // self.batch_size) * self.batch_size
        for place in range(start * self.batch_size, self.num_in_batches, most):
            keys = self._keys(epoch, place, min(place + most, self.num_in_batches))
            yield from keys.split(self.batch_size)

    def records(self, epoch: int, start: int, stop: int) -> Tensor:
        """Return the records at places ``start`` to ``stop`` of an epoch: int64 [stop - start].

        The places are those of all batches together, from 0 to ``num_in_batches``.
        """
        return self._share(self._keys(epoch, start, stop), 1.0, True).indices

    def _keys(self, epoch: int, start: int, stop: int) -> Tensor:
        """Return the keys at places ``start`` to ``stop`` of an epoch: int64 [stop - start].

        They are the records' numbers. If records may come several times in an epoch, the key of
        each other time is larger by a multiple of ``num_records``.
        """
        parts: list[Tensor] = []
        while start < stop:
            first = start % self.num_places  # ``last=wrap``: behind the last comes the first
            count = min(stop - start, self.num_places - first)
            if not self.shuffle:
                places = torch.arange(first, first + count)
            elif self.block is None:
                places = draws.shuffled(self.num_places, self.seed, epoch, first, first + count)
            else:
                how = self.block, self.window, first, first + count
                places = draws.shuffled_in_blocks(self.num_used, self.seed, epoch, *how)
            if self.sampling is None:
                parts.append(self._records_at(places))
            else:
                places, times = self.sampling.drawn(places, self.seed, epoch)
                times += start // self.num_places * self.num_places
                parts.append(self._records_at(places) + times * self.num_records)
            start += count
        return parts[0] if len(parts) == 1 else torch.cat(parts)


@final
@dataclass(frozen=True)
class Buckets:
    """Batches of several sizes, cut from the records in use in the same way in every epoch.

    The properties mean what they do for an ``Order``.
    """

    records: Tensor  # places among the records in use, the longest first: int64 [num_used]
    starts: Tensor  # where each bucket begins in ``records``, and the end: int64 [num_buckets + 1]
    sizes: Tensor  # records per batch of each bucket: int64 [num_buckets]
    first: Tensor  # the number of each bucket's first batch, and of all: int64 [num_buckets + 1]
    last: str  # what becomes of the short batch of the last bucket, as in ``Order``

    @property
    def num_short(self) -> int:
        """The number of records in the short batch; 0 if there is none."""
        if not len(self.sizes):
            return 0
        return int((self.starts[-1] - self.starts[-2]) % self.sizes[-1])

    @property
    def num_steps(self) -> int:
        return int(self.first[-1]) - (self.num_short > 0 and self.last == "drop")

    @property
    def num_in_batches(self) -> int:
        short = self.num_short
        if not short or self.last == "short":
            return len(self.records)
        more = int(self.sizes[-1]) if self.last == "wrap" else 0
        return len(self.records) - short + more

    @property
    def smallest_batches(self) -> tuple[int, int]:
        is_whole = self.starts.diff() >= self.sizes
        if self.last == "wrap":
            is_whole[:] = True
        whole = int(self.sizes[is_whole].min()) if is_whole.any() else 0
        short = self.num_short if self.last == "short" else 0
        return whole, short

    @property
    def identity(self) -> dict[str, int]:
        content = 0
        for part in (self.records, self.starts, self.sizes):
            content = crc32(part.numpy().tobytes(), content)
        return {"steps": self.num_steps, "buckets": content}

    def batch(self, step: int, seed: int, epoch: int, shuffle: bool) -> Tensor:
        """Return the places of a batch among the records in use: int64 [B].

        Without ``shuffle``, batches come from the longest to the shortest.
        """
        number = step
        if shuffle:
            number = int(draws.shuffled(self.num_steps, seed, epoch, step, step + 1))
        bucket = int(torch.searchsorted(self.first, number, right=True)) - 1
        start, end = self.starts[bucket : bucket + 2].tolist()
        count, size = end - start, int(self.sizes[bucket])
        place = (number - int(self.first[bucket])) * size
        stop = min(place + size, count)
        places = torch.arange(place, stop)
        if self.last == "wrap":
            places = torch.arange(place, place + size) % count
        if shuffle:
            key = draws.key_of(seed, epoch, draws.IN_BUCKET, bucket)
            if len(places) == stop - place:
                places = draws.bijection(count, key, place, stop)
            else:
                places = draws.bijection_at(places, count, key)
        return self.records[start + places]


class OrderChoice(Protocol):
    """A way to order records that ``order=`` chooses."""

    def order(self, order: Order, facts: RecordFacts, training: bool) -> Order:
        """Return ``order`` with this way: in training, or in validation if it matters there."""
        ...
