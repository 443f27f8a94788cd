"""Kill a packing at random moments, resume it with the same call, and compare every byte.

Each format is packed as one file and as a folder of files, with 0 to 3 worker processes. The moment
is drawn evenly over the time that the packing takes. A packing is killed up to three times before
it may finish.
"""

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

from framework.pack.pack_store import pack
from tests.faults.lanes import Row
from tests.forks import forked
from tests.input.inputs import content, packing

WAYS = [(path, one_file) for path in ("x.h5", "x.lmdb") for one_file in (True, False)]


def killed_after(path: str, one_file: bool, num_workers: int, seconds: float) -> bool:
    """Return whether the packing was still at work when it was killed."""
    packer = forked(pack, packing(path, one_file=one_file), num_workers)
    packer.join(seconds)
    alive = packer.exitcode is None
    if alive:
        packer.kill()
    packer.join()
    return alive and packer.exitcode == -signal.SIGKILL


def attempt(
    path: str,
    one_file: bool,
    expected: object,
    longest_s: float,
    draw: random.Random,
    counts: Counter[str],
) -> None:
    """Pack once, with kills, and add the outcome to ``counts``."""
    kills = 0
    for _ in range(draw.randint(1, 3)):
        if not killed_after(path, one_file, draw.randint(0, 3), draw.uniform(0, longest_s)):
            break
        kills += 1
    packed = pack(packing(path, one_file=one_file), draw.randint(0, 3))
    counts.update({"packings": 1, "kills": kills, "resumed": int(kills > 0 and packed.resumed > 0)})
    counts["different"] += content(path) != expected
    counts["left behind"] += sorted(os.listdir()) != [path]


def campaign(path: str, one_file: bool, kills: int, draw: random.Random) -> Counter[str]:
    """Pack until ``kills`` packings were killed. Return the counts."""
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        start = time.perf_counter()
        pack(packing(path, one_file=one_file), 1)
        longest_s, expected = 1.2 * (time.perf_counter() - start), content(path)
        while counts["kills"] < kills:
            attempt(path, one_file, expected, longest_s, draw, counts)
        os.chdir("/")
    return counts


def rows(kills: int, seed: int) -> Iterator[Row]:
    """Spread ``kills`` over both formats, as one file and as a folder."""
    for path, one_file in WAYS:
        start = time.perf_counter()
        counts = campaign(path, one_file, -(-kills // len(WAYS)), random.Random(seed))
        wrong = [
            f"seed {seed}: {counts[name]} {name}"
            for name in ("different", "left behind")
            if counts[name]
        ]
        form = "one file" if one_file else "a folder"
        fault = f"kill -9 in a packing to {path}, {form}: the same bytes"
        note = f"{counts['packings']} packings, {counts['resumed']} resumed"
        yield Row(fault, counts["kills"], wrong, time.perf_counter() - start, note)
