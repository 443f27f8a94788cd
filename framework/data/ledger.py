"""A ledger of the records that take longest to read, in fixed memory.

A reader measures each record of a slice. It compares them with the usual record, and reports those
that took many times as long. Records that are only gathered are not measured, since copying bytes
takes every record alike.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, final

from framework.contracts.slow_records import SlowRecord, SlowRecords

MUCH = 8  # a slow record takes so many times as long as the usual one, and at least
LEAST_S = 5e-3  # this long: a thread that loses its core for a moment looks slow, too
CAUTION = 1.1  # the factor by which a slice changes what counts as usual
MOST_KEPT = 64  # records in the ledger
MOST_SHOWN = 10  # records that a report names


class SlowRead(NamedTuple):
    """A record that took many times as long as the usual one."""

    number: int  # in the data set
    seconds: float
    size_bytes: int  # 0 if it is not known


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
        """Return the slow records of a slice.

        Args:
            indices: The records: int64 [B].
            seconds: What each took.
            size_bytes: Returns the bytes of a record by its place in the slice.
        """
        if not self._has_begun:
            # The first record of a process loads libraries.
            self._has_begun = True
            seconds = [0.0, *seconds[1:]]
        if sum(seconds) < LEAST_S:
            return []
        median = sorted(seconds)[(len(seconds) - 1) // 2]
        usual = self.seconds
        if not usual:
            usual = median
        elif median > usual:
            usual = min(median, usual * CAUTION)
        else:
            usual = max(median, usual / CAUTION)
        self.seconds = usual
        limit = max(LEAST_S, MUCH * usual)
        if max(seconds) <= limit:
            return []
        return [
            SlowRead(int(indices[place]), value, size_bytes(place))
            for place, value in enumerate(seconds)
            if value > limit
        ]


class _Kept:
    """What is remembered of a record."""

    def __init__(self) -> None:
        self.num_reads = 0
        self.seconds = 0.0
        self.size_bytes = 0

    @property
    def mean_s(self) -> float:
        return self.seconds / max(1, self.num_reads)


@final
class Ledger:
    """The slowest records of a source. One thread adds, and any thread looks.

    Attributes:
        slow_batches: Numbers of the delivered batches with slow records, for ``Waits``.
        num_records: Records that were delivered.
        num_slow: How often a record was slow.
        slow_s: The seconds of slow records, over all workers.
    """

    def __init__(self) -> None:
        self.slow_batches: set[int] = set()
        self.num_records = 0
        self.num_slow = 0
        self.slow_s = 0.0
        self._number = 0  # of the next batch
        self._is_slow = False  # whether the next batch holds slow records
        self._kept: dict[int, _Kept] = {}

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
            kept = self._kept.get(read.number) or self._place(read)
            if kept is not None:
                kept.num_reads += 1
                kept.seconds += read.seconds
                kept.size_bytes = read.size_bytes

    def delivered(self, num_records: int) -> None:
        """Count a batch that is handed over."""
        self.num_records += num_records
        if self._is_slow:
            self.slow_batches.add(self._number)
            self._is_slow = False
        self._number += 1

    def report(self, read_s: float, name: Callable[[int], str]) -> SlowRecords | None:
        """Return what is known, or None if no record was slow.

        Args:
            read_s: The seconds of all records, over all workers.
            name: Returns the name of a record.
        """
        if not self.num_slow:
            return None
        # A record that was slow once may have been unlucky, so all its slow reads count.
        every = self._kept.copy()
        kept = sorted(every.items(), key=lambda pair: -pair[1].seconds)[:MOST_SHOWN]
        return SlowRecords(
            records=tuple(
                SlowRecord(index, name(index), own.num_reads, own.mean_s, own.size_bytes)
                for index, own in kept
            ),
            num_slow=self.num_slow,
            num_records=self.num_records,
            slow_s=self.slow_s,
            read_s=read_s,
            numbers=sorted(every),
        )

    def _place(self, read: SlowRead) -> _Kept | None:
        """Return a new place for a record. None if all others took longer."""
        if len(self._kept) >= MOST_KEPT:
            least = min(self._kept, key=lambda index: self._kept[index].seconds)
            if self._kept[least].seconds >= read.seconds:
                return None
            del self._kept[least]
        kept = self._kept[read.number] = _Kept()
        return kept
