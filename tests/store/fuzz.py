"""Damage to files, tried many times in a process whose crash or hang is reported."""

import multiprocessing
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from framework.errors import DataError
from tests.contract.cases import plain
from tests.forks import forked

LIMIT_S = 20  # for one damaged file; more is a hang


def flips(
    data: bytes, count: int, first: int = 0, last: int | None = None, seed: int = 0
) -> Iterator[bytes]:
    """Yield ``data`` with one flipped bit between bytes ``first`` and ``last``, ``count`` times."""
    rng = random.Random(seed)
    for _ in range(count):
        damaged = bytearray(data)
        damaged[rng.randrange(first, len(data) if last is None else last)] ^= 1 << rng.randrange(8)
        yield bytes(damaged)


def mutations(data: bytes, count: int, block: int = 4096, seed: int = 0) -> Iterator[bytes]:
    """Yield ``count`` copies with random bytes, extreme numbers, or blocks moved or zeroed."""
    rng = random.Random(seed)
    num_blocks = max(1, len(data) // block)
    for _ in range(count):
        damaged = bytearray(data)
        at, to = (rng.randrange(num_blocks) * block for _ in range(2))
        kind = rng.randrange(5)
        if kind == 0:
            damaged[at : at + block], damaged[to : to + block] = (
                damaged[to : to + block],
                damaged[at : at + block],
            )
        elif kind == 1:
            damaged[at : at + block] = bytes(len(damaged[at : at + block]))
        elif kind == 2:
            damaged[at : at + block] = damaged[to : to + block]
        elif kind == 3:
            for _ in range(rng.randrange(1, 20)):
                damaged[at + rng.randrange(min(block, len(damaged) - at))] = rng.randrange(256)
        else:
            place = at + rng.randrange(min(block, len(damaged) - at) // 8 or 1) * 8
            damaged[place : place + 8] = rng.choice(
                [b"\xff" * 8, bytes(8), b"\x01" + bytes(7), b"\xff" * 4 + bytes(4)]
            )
        yield bytes(damaged)


def truncations(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield the first part of ``data``, ``count`` times, cut at a random length."""
    rng = random.Random(seed)
    return (data[: rng.randrange(len(data))] for _ in range(count))


def verdict(
    open_store: Callable[[str], object], path: str, expected: dict[str, list], indices: torch.Tensor
) -> str:
    """Return the outcome of reading the damaged file; "right", "found" and "refused" are fine."""
    try:
        store = open_store(path)
        records = store.read(indices)
        bad = set(store.damaged(indices, records))
        [store.name(index) for index in range(3)]
        actual = plain(records)
    except DataError as error:
        return "refused" if "\n" not in str(error) else f"more than one line: {error}"
    except BaseException as error:  # noqa: BLE001  # that is what is looked for
        return f"{type(error).__name__}: {error}"
    wrong = {
        place
        for name, values in expected.items()
        for place, value in enumerate(values)
        if actual[name][place] != value
    }
    if wrong - {place for place, index in enumerate(indices.tolist()) if index in bad}:
        return f"silently wrong: {sorted(wrong)}"
    return "found" if bad else "right"


def _judge(open_store, suffix, damaged, expected, indices, queue) -> None:
    path = f"damaged.{suffix}"
    counts: dict[str, int] = {}
    for data in damaged:
        Path(path).unlink(missing_ok=True)
        Path(path).write_bytes(data)
        signal.alarm(LIMIT_S)
        what = verdict(open_store, path, expected, indices)
        signal.alarm(0)
        counts[what] = counts.get(what, 0) + 1
    queue.put(counts)


def judge(
    open_store, suffix: str, damaged: Iterator[bytes], expected: dict[str, list], num_records: int
) -> dict[str, int]:
    """Return the count of each verdict over ``damaged`` files; "crashed" alone if it crashed."""
    queue = multiprocessing.get_context("fork").SimpleQueue()
    child = forked(_judge, open_store, suffix, damaged, expected, torch.arange(num_records), queue)
    child.join()
    return queue.get() if child.exitcode == 0 else {f"crashed: {child.exitcode}": 1}


def in_a_process(work: Callable[..., None], *arguments) -> int | None:
    """Return a forked process's exit code: negative after a signal, None after 120 s."""
    child = forked(work, *arguments)
    child.join(120)
    return child.exitcode
