"""Kill a packing at random moments, go on with the same call, and compare every byte.

Each format, as one file and as a folder of files, with 0 to 3 worker processes; the moment is drawn evenly over the time that the packing
takes. What was killed is killed again, up to three times, before it may finish.
"""

import os
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator

from framework.pack.engine.pack_store import pack
from tests.faults.lanes import Row
from tests.forks import forked
from tests.input.inputs import content, packing

WAYS = [(path, one_file) for path in ("x.h5", "x.lmdb") for one_file in (True, False)]


def killed_after(path: str, one_file: bool, num_workers: int, seconds: float) -> bool:
    """Whether the packing was still at work when it was killed."""
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
    found: Counter[str],
) -> None:
    """One packing with its kills."""
    kills = 0
    for _ in range(draw.randint(1, 3)):
        if not killed_after(path, one_file, draw.randint(0, 3), draw.uniform(0, longest_s)):
            break
        kills += 1
    packed = pack(packing(path, one_file=one_file), draw.randint(0, 3))
    found.update({"packings": 1, "kills": kills, "resumed": int(kills > 0 and packed.resumed > 0)})
    found["different"] += content(path) != expected
    found["left behind"] += sorted(os.listdir()) != [path]


def campaign(path: str, one_file: bool, kills: int, draw: random.Random) -> Counter[str]:
    """Packings until so many were killed."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        start = time.perf_counter()
        pack(packing(path, one_file=one_file), 1)
        longest_s, expected = 1.2 * (time.perf_counter() - start), content(path)
        while found["kills"] < kills:
            attempt(path, one_file, expected, longest_s, draw, found)
        os.chdir("/")
    return found


def rows(kills: int, seed: int) -> Iterator[Row]:
    """``kills`` over both formats, as one file and as a folder."""
    for path, one_file in WAYS:
        start = time.perf_counter()
        found = campaign(path, one_file, -(-kills // len(WAYS)), random.Random(seed))
        wrong = [
            f"seed {seed}: {found[name]} {name}"
            for name in ("different", "left behind")
            if found[name]
        ]
        fault = f"kill -9 in a packing to {path}, {'one file' if one_file else 'a folder'}: the same bytes"
        note = f"{found['packings']} packings, {found['resumed']} resumed"
        yield Row(fault, found["kills"], wrong, time.perf_counter() - start, note)
