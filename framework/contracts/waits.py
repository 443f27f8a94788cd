"""How long steps wait for their batches, and what records that are slow to read cost a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from time import perf_counter
from typing import Any, NamedTuple, final

PAUSE_S = 1.0  # a longer time between two batches may be a validation or a saved state
MUCH = 10  # a pause takes this many times as long as the step before, too
FEW = 0.05  # if a larger share of records is slow, no few records are to blame
WORTH = 0.03  # the least share of a run's time that is worth a line
MOST_NAMED = 3  # records that the line names
MOST_LISTED = 10  # records of all ranks together


@final
@dataclass(eq=False)
class Waits:
    """Counts what a loader waits for its source. Counting a batch takes 0.3 us.

    The loader calls ``begin``, and then ``arrived`` and ``ask`` in turn. One thread calls them.
    """

    # The numbers of the batches with slow records that the source has delivered, as ``begin``
    # counts them. Numbers are removed when their batches arrive.
    slow: set[int] = field(default_factory=set[int])
    wait_s: float = 0.0  # that steps waited, over the loader's life
    start_s: float = 0.0  # the part of ``wait_s`` for the first batches of epochs
    step_s: float = 0.0  # of the steps themselves, without pauses
    num_batches: int = 0  # that arrived
    slow_wait_s: float = 0.0  # the part of ``wait_s`` for batches with slow records
    num_slow: int = 0  # batches with slow records
    _number: int = 0
    _is_first: bool = True
    _asked_at: float = 0.0
    _arrived_at: float = 0.0
    _newest_s: float = 0.0  # between the newest two batches, pause or not
    _look_at: float = inf
    _look: Callable[[float], float] = lambda _: inf

    def call(self, look: Callable[[float], float]) -> None:
        """Call ``look`` now and then when a batch has arrived.

        It gets the time of ``perf_counter``, and returns when to call it again.
        """
        self._look = look
        self._look_at = 0.0

    def begin(self, number: int = 0) -> None:
        """Begin an epoch or a part of one. ``number`` counts the batches since reading began."""
        self._number = number
        self._is_first = True
        self._asked_at = perf_counter()

    def arrived(self) -> None:
        """Count the batch that has arrived."""
        now = perf_counter()
        wait_s = now - self._asked_at
        self.wait_s += wait_s
        self.num_batches += 1
        if self._is_first:
            self._is_first = False
            self.start_s += wait_s
        if self._number in self.slow:
            self.slow.discard(self._number)
            self.slow_wait_s += wait_s
            self.num_slow += 1
        self._number += 1
        self._arrived_at = now
        if now >= self._look_at:
            self._look_at = self._look(now)
            self._arrived_at = perf_counter()

    def ask(self) -> None:
        """Count the step that has ended. The next batch is awaited from now on."""
        now = perf_counter()
        step_s = now - self._arrived_at
        if step_s < PAUSE_S or step_s < MUCH * self._newest_s:
            self.step_s += step_s
        self._newest_s = step_s
        self._asked_at = now


class SlowRecord(NamedTuple):
    """A record that took many times as long as the usual one."""

    number: int  # in the data set
    name: str
    num_reads: int  # when it was slow
    mean_s: float  # of these reads
    size_bytes: int  # as stored; 0 if it is not known


@dataclass(frozen=True)
class SlowRecords:
    """The slow records of a source since it was opened."""

    records: Sequence[SlowRecord]  # those that took most time in all their slow reads first
    num_slow: int  # how often a record was slow
    num_records: int  # records that were read
    slow_s: float  # seconds of the slow ones, over all workers
    read_s: float  # seconds of all, over all workers
    numbers: Sequence[int]  # of all records that were slow, as far as they are remembered


def slow_block(slow: SlowRecords | None, waits: Waits) -> dict[str, Any]:
    """Return what a rank knows of its slow records, in plain values; {} if there are none.

    ``saved_s`` estimates what would be saved if they and their batches took as long as the others.
    """
    if slow is None:
        return {}
    num_others = waits.num_batches - waits.num_slow
    other_s = (waits.wait_s - waits.slow_wait_s) / max(1, num_others)
    usual_s = (slow.read_s - slow.slow_s) / max(1, slow.num_records - slow.num_slow)
    saved_s = waits.slow_wait_s - other_s * waits.num_slow
    saved_s = min(saved_s, slow.slow_s - usual_s * slow.num_slow)
    return {
        **asdict(slow),
        "records": [record._asdict() for record in slow.records],
        "usual_s": usual_s,
        "wait_s": waits.wait_s,
        "slow_wait_s": waits.slow_wait_s,
        "saved_s": max(0.0, saved_s),
    }


def joined_blocks(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return one block for all ranks. Its records say which rank read them."""
    known = [(rank, block) for rank, block in enumerate(blocks) if block]
    if not known:
        return {}
    records = [{**record, "rank": rank} for rank, own in known for record in own["records"]]
    records.sort(key=lambda record: -record["num_reads"] * record["mean_s"])
    sums = {
        name: sum(block[name] for _, block in known)
        for name in known[0][1]
        if name not in ("records", "usual_s", "numbers")
    }
    num_usual = max(1, sums["num_records"] - sums["num_slow"])
    return {
        **sums,
        "records": records[:MOST_LISTED],
        "numbers": sorted({number for _, block in known for number in block["numbers"]}),
        "usual_s": (sums["read_s"] - sums["slow_s"]) / num_usual,
    }


def slow_words(block: Mapping[str, Any], train_s: float) -> str:
    """Return a line about slow records, or "" if no few records matter to training's seconds."""
    if not block or block["num_slow"] > FEW * block["num_records"]:
        return ""
    saved_s = min(block["saved_s"], 0.99 * train_s)
    if saved_s < WORTH * train_s:
        return ""
    names = ", ".join(map(named, block["records"][:MOST_NAMED]))
    more = len(block["records"]) - MOST_NAMED
    if more > 0:
        names += f" and {more} more"
    share = block["slow_wait_s"] / (block["wait_s"] or 1.0)
    return (
        f"slow records: {block['num_slow']:,} of {block['num_records']:,} reads took "
        f"{block['slow_s']:.1f} of {block['read_s']:.1f} thread-seconds, and {100 * share:.0f} % "
        f"of the waiting was for their batches. As fast as the others, they would save about "
        f"{saved_s:.1f} of {train_s:.1f} s: {names}"
    )


def named(record: Mapping[str, Any]) -> str:
    """Return a record of a block in words: its name, time and size."""
    size = ""
    if record["size_bytes"]:
        size = f", {record['size_bytes'] / 1e6:.1f} MB"
    return f"{record['name']} ({1e3 * record['mean_s']:.0f} ms{size})"
