"""Records that take many times as long to read as the usual one, and what they cost a run."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

from framework.contracts.waits import Waits

FEW = 0.05  # if a larger share of records is slow, no few records are to blame
WORTH = 0.03  # the least share of a run's time that is worth a line
MOST_NAMED = 3  # records that the line names
MOST_LISTED = 10  # records of all ranks together


class SlowRecord(NamedTuple):
    """A record that took many times as long as the usual one."""

    number: int  # in the data set
    name: str
    num_reads: int  # when it was slow
    mean_s: float  # of these reads
    size_bytes: int  # as stored; 0 if it is not known


@final
@dataclass(frozen=True)
class SlowRecords:
    """The slow records of a source since it was opened."""

    records: Sequence[SlowRecord]  # those that took most time in all their slow reads first
    num_slow: int  # how often a record was slow
    num_records: int  # records that were read
    slow_s: float  # seconds of the slow ones, over all workers
    read_s: float  # seconds of all, over all workers
    numbers: Sequence[int]  # of all records that were slow, as far as they are remembered


@runtime_checkable
class FindsSlow(Protocol):
    """A capability of a Source: it measures its records, and finds those that are slow."""

    @property
    def slow_batches(self) -> set[int]:
        """The numbers of the delivered batches with slow records, as ``Waits`` wants them."""
        ...

    def slow_records(self) -> SlowRecords | None:
        """Return the slow records so far, or None if there was none. Any thread may call this."""
        ...


def waits_for(source: object) -> Waits:
    """Return the waits of a loader over ``source``."""
    return Waits(source.slow_batches if isinstance(source, FindsSlow) else None)


def slow_block(source: object, waits: Waits) -> dict[str, Any]:
    """Return what a rank knows of its slow records, in plain values; {} if there are none.

    ``slow_wait_s`` is the waiting for batches that held slow records. ``saved_s`` estimates what
    would be saved if these records took as long as the others: batches that held them would be
    awaited as long as the others.
    """
    slow = source.slow_records() if isinstance(source, FindsSlow) else None
    if slow is None:
        return {}
    num_others = waits.num_batches - waits.num_slow
    other_s = (waits.wait_s - waits.slow_wait_s) / max(1, num_others)
    usual_s = (slow.read_s - slow.slow_s) / max(1, slow.num_records - slow.num_slow)
    saved_s = min(
        waits.slow_wait_s - other_s * waits.num_slow,
        slow.slow_s - usual_s * slow.num_slow,
    )
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
    sums = {
        name: sum(block[name] for _, block in known)
        for name in known[0][1]
        if name not in ("records", "usual_s", "numbers")
    }
    num_usual = max(1, sums["num_records"] - sums["num_slow"])
    return {
        **sums,
        "records": sorted(records, key=_minus_total_s)[:MOST_LISTED],
        "numbers": sorted({number for _, block in known for number in block["numbers"]}),
        "usual_s": (sums["read_s"] - sums["slow_s"]) / num_usual,
    }


def slow_words(block: Mapping[str, Any], train_s: float) -> str:
    """Return a line about slow records, or "" if no few records matter to the run.

    ``train_s`` is the time of training.
    """
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


def _minus_total_s(record: Mapping[str, Any]) -> float:
    return -record["num_reads"] * record["mean_s"]


def named(record: Mapping[str, Any]) -> str:
    """Return a record of a block in words: its name, time and size."""
    size = ""
    if record["size_bytes"]:
        size = f", {record['size_bytes'] / 1e6:.1f} MB"
    return f"{record['name']} ({1e3 * record['mean_s']:.0f} ms{size})"
