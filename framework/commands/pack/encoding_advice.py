"""Print what ``paceline pack ... advise=true`` finds out."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from framework.commands.pack.measure_encodings import (
    DISK_BYTES_PER_S,
    Cost,
    measure,
    recommend,
    take_sample,
)
from framework.config.prepare_data import packing_of, preparation_of
from framework.contracts.records import RecordInput
from framework.measure.host import num_cores, total_memory_bytes
from framework.pack.images import QUALITY
from framework.pack.pack_store import free_bytes
from framework.pack.packing import MakeWriter

ENCODINGS = ("keep", "jpeg", "png", "raw")
NOT_KEPT = ("advise=", "pack.encode=", "pack.quality=", "hydra.")


def show_advice(
    source: RecordInput,
    config: Mapping[str, Any],
    make_writer: MakeWriter,
    path: str,
    words: Sequence[str],
) -> None:
    """Print a line per encoding, which one is best, and the command that packs so.

    ``config`` has the blocks ``pack``, ``input`` and ``output``; ``words`` is the command line.
    """
    options = config["pack"]
    # Checks the other keys. Raw takes all of them.
    packing_of(source, _with(options, "raw"), make_writer, path, config)
    sample = take_sample(source)
    tried = [_with(options, encode) for encode in ENCODINGS]
    costs = [measure(source, sample, path, each, preparation_of) for each in tried]
    measured = f"{sample.num_items} of {source.manifest.num_records} items, evenly spread"
    if sample.num_bad:
        measured += f", {sample.num_bad} of them bad"
    print(f"measured on {measured}:")
    where = Path(path).absolute().parent
    free = free_bytes(where)
    # With one file, finished jobs and the joined file are on the disk together.
    copies = 1 + bool(options["one_file"])
    _print_costs(costs, free / copies)
    print(
        f"packing takes {copies} times the bytes in all for a while; "
        f"{free:,} bytes are free in {where}"
    )
    memory = total_memory_bytes()
    best = recommend(costs, free / copies, memory)
    if best is None:
        print(
            "recommended: none: the disk holds none of them; choose another output.path, "
            "or a smaller pack.resize or pack.size"
        )
        return
    print(f"recommended: {best.encode}: {_reason(best, costs, memory)}")
    chosen = [f"pack.encode={best.encode}"]
    if best.encode == "jpeg":
        chosen.append(f"pack.quality={_with(options, 'jpeg')['quality']}")
    kept = [word for word in words if not word.startswith(NOT_KEPT)]
    print(shlex.join(["paceline", "pack", *kept, *chosen]))


def _with(options: Mapping[str, Any], encode: str) -> dict[str, Any]:
    """Return the options with another encoding. A quality that is typed is for JPEG alone."""
    changed = {**options, "encode": encode}
    if encode != "jpeg":
        changed["quality"] = QUALITY
    return changed


def _print_costs(costs: Sequence[Cost], room: float) -> None:
    packed = f"{'bytes a record':>16}{'bytes in all':>18}{'packed/s a core':>17}"
    print(f"{'encode':8}{packed}{f'read/s, {num_cores()} cores':>17}")
    for cost in costs:
        if cost.why_not:
            print(f"{cost.encode:8}not possible: {' '.join(cost.why_not.split())}")
            continue
        line = f"{cost.encode:8}{cost.record_bytes:>16,.0f}{cost.total_bytes:>18,.0f}"
        line += f"{cost.pack_rate:>17,.0f}{cost.read_rate:>17,.0f}"
        if cost.total_bytes > room:
            line += "  more than the disk holds"
        print(line)


def _reason(best: Cost, costs: Sequence[Cost], memory: int) -> str:
    possible = [cost for cost in costs if not cost.why_not]
    rates = {cost.encode: f"{cost.rate_for(memory):,.0f}" for cost in possible}
    others = [cost for cost in possible if cost.encode != best.encode]
    beside = ", ".join(f"{c.encode} {rates[c.encode]} from {c.total_bytes:,.0f}" for c in others)
    words = f"{rates[best.encode]} records/s from {best.total_bytes:,.0f} bytes"
    words += f" ({beside or 'nothing else is possible'})"
    if any(cost.total_bytes > memory / 2 for cost in possible):
        disk = f"{DISK_BYTES_PER_S / 1e6:,.0f} MB/s from the disk"
        words += f"; a store of more than half the memory is counted at {disk}"
    if best.encode == "jpeg":
        words += "; it loses a little of the pictures, as JPEG does"
    return words
