"""What ``paceline pack ... advise=true`` prints."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.cli.progress import packing_of, preparation_of
from framework.commands.pack.measure_encodings import (
    DISK_BYTES_PER_S,
    Cost,
    measure,
    memory_bytes,
    recommend,
    take_sample,
)
from framework.contracts.records import RecordInput
from framework.measure.host import num_cores
from framework.pack.engine.disk_space import free_bytes
from framework.pack.engine.jobs import MakeWriter

ENCODINGS = ("keep", "jpeg", "png", "raw")
COPIES = 2  # finished jobs and the joined file are on the disk together
SETS = ("advise=", "pack.encode=", "pack.quality=", "hydra.")


def show_advice(
    source: RecordInput,
    options: Mapping[str, Any],
    make_writer: MakeWriter,
    path: str,
    words: Sequence[str],
) -> None:
    """A line per encoding, then which one is best and how to pack so. ``words``: the overrides that were typed."""
    packing_of(
        source, _with(options, "jpeg"), make_writer, path
    )  # what is wrong with the other keys is said first
    sample = take_sample(source)
    costs = [
        measure(source, sample, path, _with(options, encode), preparation_of)
        for encode in ENCODINGS
    ]
    where = Path(path).absolute().parent
    copies = COPIES if options["one_file"] else 1
    free, memory = free_bytes(where), memory_bytes()
    bad = f", {sample.num_bad} of them bad" if sample.num_bad else ""
    print(
        f"measured on {sample.num_items} of {source.manifest.num_records} items, evenly spread{bad}:"
    )
    print(
        f"{'encode':8}{'bytes a record':>16}{'bytes in all':>18}{'packed/s a core':>17}{f'read/s, {num_cores()} cores':>17}"
    )
    for cost in costs:
        print(_line(cost, copies * cost.total_bytes > free))
    best = recommend(costs, lambda cost: copies * cost.total_bytes <= free, memory)
    print(
        f"packing takes {copies} times the bytes in all for a while; {free:,} bytes are free in {where}"
    )
    if best is None:
        print(
            "recommended: none: the disk holds none of them; choose another output.path, or a smaller pack.resize or pack.size"
        )
        return
    print(f"recommended: {best.encode}: {_reason(best, costs, memory)}")
    quality = (
        [f"pack.quality={_with(options, best.encode)['quality']}"] if best.encode == "jpeg" else []
    )
    kept = [word for word in words if not word.startswith(SETS)]
    print(shlex.join(["paceline", "pack", *kept, f"pack.encode={best.encode}", *quality]))


def _with(options: Mapping[str, Any], encode: str) -> dict[str, Any]:
    """The same with another encoding; a quality is a JPEG's alone."""
    return {
        **options,
        "encode": encode,
        "quality": options["quality"] if options["encode"] in ("jpeg", encode) else 90,
    }


def _line(cost: Cost, too_large: bool) -> str:
    if cost.why_not:
        return f"{cost.encode:8}not possible: {' '.join(cost.why_not.split())}"
    numbers = f"{cost.record_bytes:>16,.0f}{cost.total_bytes:>18,.0f}{cost.pack_rate:>17,.0f}{cost.read_rate:>17,.0f}"
    return f"{cost.encode:8}{numbers}{'  more than the disk holds' if too_large else ''}"


def _reason(best: Cost, costs: Sequence[Cost], memory: int) -> str:
    rate = best.rate_for(memory)
    others = [cost for cost in costs if not cost.why_not and cost.encode != best.encode]
    beside = ", ".join(
        f"{cost.encode} {cost.rate_for(memory):,.0f} from {cost.total_bytes:,.0f}"
        for cost in others
    )
    words = f"{rate:,.0f} records/s from {best.total_bytes:,.0f} bytes ({beside or 'nothing else is possible'})"
    if any(cost.total_bytes > memory / 2 for cost in (*others, best)):
        words += f"; what is more than half the memory is counted at {DISK_BYTES_PER_S / 1e6:,.0f} MB/s from the disk"
    return words + (
        "; it loses a little of the pictures, as JPEG does" if best.encode == "jpeg" else ""
    )
