"""What readers and workers hand each other: requests, work on them, and slices of it."""

from array import array
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from framework.contracts.batch import Batch
from framework.contracts.records import Records
from framework.data.ledger import SlowRead
from framework.errors import words_of
from framework.measure.stopwatch import Stopwatch


class Request(NamedTuple):
    """One batch to read."""

    epoch: int
    indices: Tensor  # the records: int64 [B]
    training: bool  # whether the transform draws random numbers
    verify: bool = False  # whether to compare records with their CRC32
    keys: Tensor | None = None  # what random changes depend on, as ``Share.keys``

    def keys_of(self, start: int, stop: int) -> Tensor:
        """Return what the random changes of records ``start`` to ``stop`` depend on: int64 [n]."""
        keys = self.indices if self.keys is None else self.keys
        return keys[start:stop]


class ReadWork(NamedTuple):
    """A batch that is being read. Threads may fill slices of it at the same time."""

    request: Request
    images: dict[str, Tensor]  # the memory of image fields, if their size is known
    parts: dict[int, Records]  # the other fields of filled slices, by their start
    slices_s: list[dict[str, float]]  # seconds per stage, of each slice and of finishing
    slow: list[SlowRead]
    numbers: Tensor | None = None  # the transform's draws, float32 [B, num_draws], if it has some


class Timed(NamedTuple):
    """A batch, the seconds per stage it took, slice by slice, and its slow records."""

    batch: Batch
    slices_s: list[dict[str, float]]
    slow: Sequence[SlowRead] = ()


class Slice(NamedTuple):
    """What the fields of a slice share."""

    indices: Tensor  # the records: int64 [B]
    keys: Tensor  # what random changes depend on: int64 [B]
    numbers: Tensor | None  # the transform's draws, float32 [B, num_draws]; None outside training
    watch: Stopwatch  # of the thread
    seconds: "memoryview[float]"  # what each record took, as far as it is measured: float64 [B]
    windows: dict[str, Tensor]  # of image fields, once they are known: int64 [B, 5]

    def between(self, start: int, stop: int) -> "Slice":
        """Return some of the records."""
        place = slice(start, stop)
        return self._replace(
            indices=self.indices[place],
            keys=self.keys[place],
            numbers=None if self.numbers is None else self.numbers[place],
            seconds=self.seconds[place],
            windows={},
        )

    def alone(self, values: Any) -> "Iterator[tuple[Any, Slice]]":
        """Yield each record alone: its values, and its slice."""
        for number in range(len(self.indices)):
            yield values[number : number + 1], self.between(number, number + 1)


def nothing_yet(count: int) -> "memoryview[float]":
    """Return the seconds of ``count`` records that are still to be measured: float64 [count]."""
    return memoryview(array("d", bytes(8 * count)))


def plain(error: BaseException) -> str:
    """Return an exception's kind and words, even if its own ``__str__`` fails."""
    return f"{type(error).__name__}: {words_of(error)}"
