"""What readers and workers hand each other, and a ledger of the records that take longest to read.

A reader measures each record of a slice, compares it with the usual record, and reports those that
took many times as long. Records that are only gathered are not measured, since copying bytes takes
every record alike.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

from torch import Tensor

from framework.contracts.waits import SlowRecord, SlowRecords
from framework.errors import words_of

MUCH = 8  # a slow record takes so many times as long as the usual one, and at least
LEAST_S = 5e-3  # this long: a thread that loses its core for a moment looks slow, too
CAUTION = 1.1  # the factor by which a slice changes what counts as usual
MOST_KEPT = 64  # records in the ledger
MOST_SHOWN = 10  # records that a report names


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


class SlowRead(NamedTuple):
    """A record that took many times as long as the usual one."""

    number: int  # in the data set
    seconds: float
    size_bytes: int  # 0 if it is not known


class Work(NamedTuple):
    """A batch that is being read. Threads may fill slices of it at the same time."""

    request: Request
    parts: dict[int, Any]  # what the slices hold, by their start
    slices_s: list[dict[str, float]]  # seconds per stage, of each slice and of finishing
    slow: list[SlowRead]
    images: dict[str, Tensor]  # the memory of image fields, if their size is known
    numbers: Tensor | None = None  # the transform's draws, float32 [B, num_draws], if it has some


class Timed(NamedTuple):
    """A batch or a slice of one, the seconds per stage it took, and its slow records."""

    batch: Any
    slices_s: list[dict[str, float]]
    slow: Sequence[SlowRead] = ()


def plain(error: BaseException) -> str:
    """Return an exception's kind and words, even if its own ``__str__`` fails."""
    return f"{type(error).__name__}: {words_of(error)}"


@final
class Usual:
    """The seconds that a usual record takes: a running median of the medians of slices.

    Several threads may use one. A change that gets lost does no harm.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._has_begun = False

    def slow(
        self, indices: Any, seconds: Sequence[float], size_bytes: Callable[[int], int]
    ) -> list[SlowRead]:
        """Return the slow ones of a slice's records, ``indices``, of which each took ``seconds``.

        ``size_bytes`` returns the bytes of a record by its place in the slice.
        """
        if not self._has_begun:  # the first record of a process loads libraries
            self._has_begun = True
            seconds = [0.0, *seconds[1:]]
        if sum(seconds) < LEAST_S:
            return []
        median = sorted(seconds)[(len(seconds) - 1) // 2]
        usual = self.seconds or median
        self.seconds = usual = min(max(median, usual / CAUTION), usual * CAUTION)
        limit = max(LEAST_S, MUCH * usual)
        return [
            SlowRead(int(indices[place]), value, size_bytes(place))
            for place, value in enumerate(seconds)
            if value > limit
        ]


@final
class Ledger:
    """The slowest records of a source, in fixed memory. One thread adds, and any thread looks."""

    def __init__(self) -> None:
        self.slow_batches: set[int] = set()  # those that were delivered, by number, for ``Waits``
        self.num_records = 0  # that were delivered
        self.num_slow = 0  # how often a record was slow
        self.slow_s = 0.0  # seconds of slow records, over all workers
        self._number = 0  # of the next batch
        self._is_slow = False  # whether the next batch holds slow records
        self._kept: dict[int, tuple[int, float, int]] = {}  # reads, seconds, bytes

    def begin(self) -> None:
        """Begin an epoch, a part of one, or epochs that are read without a stop."""
        self._number = 0
        self._is_slow = False
        self.slow_batches.clear()

    def add(self, reads: Iterable[SlowRead]) -> None:
        """Add the slow records of the next batch."""
        for read in reads:
            self._is_slow = True
            self.num_slow += 1
            self.slow_s += read.seconds
            if read.number not in self._kept and len(self._kept) >= MOST_KEPT:
                least = min(self._kept, key=lambda index: self._kept[index][1])
                if self._kept[least][1] >= read.seconds:
                    continue
                del self._kept[least]
            num_reads, seconds, _ = self._kept.get(read.number, (0, 0.0, 0))
            self._kept[read.number] = num_reads + 1, seconds + read.seconds, read.size_bytes

    def delivered(self, num_records: int) -> None:
        """Count a batch that is handed over."""
        self.num_records += num_records
        if self._is_slow:
            self.slow_batches.add(self._number)
            self._is_slow = False
        self._number += 1

    def report(self, read_s: float, name: Callable[[int], str]) -> SlowRecords | None:
        """Return what is known, or None if no record was slow.

        ``read_s`` are the seconds of all records, over all workers. ``name`` names a record.
        """
        if not self.num_slow:
            return None
        # A record that was slow once may have been unlucky, so all its slow reads count.
        every = self._kept.copy()
        slowest = sorted(every.items(), key=lambda pair: -pair[1][1])[:MOST_SHOWN]
        records = [
            SlowRecord(index, name(index), num_reads, seconds / num_reads, size)
            for index, (num_reads, seconds, size) in slowest
        ]
        return SlowRecords(
            records, self.num_slow, self.num_records, self.slow_s, read_s, sorted(every)
        )
