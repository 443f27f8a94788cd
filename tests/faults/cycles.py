"""Take batches of a loader, leave it in any way, close it: nothing may stay behind."""

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import torch

from framework.contracts.loader import LoaderContext
from framework.loader import plain, prefetch, stream
from framework.measure.clock import HostClock
from framework.transform import none, resize
from tests.conftest import children_of_this_process, orphaned_memory
from tests.contract.cases import STORES, WAYS, make_source, shares
from tests.faults.lanes import Row, repeat

COUNT, BATCH = 40, 4
# long, because a test beside this one may leave shared memory until it ends
WAIT_S = 30.0
SERIES = 100  # cycles over which memory is looked at
# bytes per cycle: less than a batch or a stack, more than the allocator's pages fluctuate by
MOST_GROWTH = 32 << 10
LOADERS = {
    "plain": lambda context: plain.PlainLoader(True, context=context),
    "prefetch": lambda context: prefetch.PrefetchLoader(2, True, context=context),
    "stream": lambda context: stream.StreamLoader(2, 2, context=context),
}


def rows(times: int, seed: int) -> Iterator[Row]:
    fault = "a loader opened, left in any way, closed: nothing stays"
    yield repeat(fault, leaves_nothing, times, seed)
    yield repeat(f"memory over {SERIES} such cycles", memory_stays, -(-times // SERIES), seed)


class Mistake(Exception):
    """A user's mistake in the body of the loop."""


# --------------------------------------------------------------------------- ways to leave a loader


def take(loader, draw: random.Random, epoch: int = 0):
    """Return an epoch after some batches were taken from it, and check these batches."""
    batches = loader.epoch(epoch)
    expected = shares(loader.context.source.order, epoch)
    for share in expected[: draw.randint(0, 5)]:
        compare(next(batches), share)
    return batches


def compare(micro, share) -> None:
    actual = micro.batch["index"].tolist(), micro.weight, micro.last
    assert actual == share, f"{actual} came instead of {share}"


def closed(loader, draw: random.Random) -> None:
    take(loader, draw).close()


def dropped(loader, draw: random.Random) -> None:
    take(loader, draw)


def whole(loader, draw: random.Random) -> None:
    for micro, share in zip(loader.epoch(3), shares(loader.context.source.order, 3), strict=True):
        compare(micro, share)


def broken_off(loader, draw: random.Random) -> None:
    last = draw.randint(0, 4)
    for number, _ in enumerate(loader.epoch(0)):
        if number == last:
            break


def failed_step(loader, draw: random.Random) -> None:
    with suppress(Mistake):
        for _ in loader.epoch(draw.randint(0, 1)):
            raise Mistake


def thrown_into(loader, draw: random.Random) -> None:
    with suppress(Mistake):
        take(loader, draw).throw(Mistake)


def failed_augment(loader, draw: random.Random) -> None:
    left = [draw.randint(0, 3)]

    def augment(batch, epoch):
        left[0] -= 1
        if left[0] < 0:
            raise Mistake
        return batch

    object.__setattr__(loader.context, "augment", augment)
    with suppress(Mistake):
        list(loader.epoch(0))


def two_alive(loader, draw: random.Random) -> None:
    both = [take(loader, draw, epoch) for epoch in range(2)]
    draw.shuffle(both)
    for batches in both:
        next(batches, None)
        batches.close()


def source_closed(loader, draw: random.Random) -> None:
    batches = take(loader, draw)
    loader.close()
    batches.close()


def twice(loader, draw: random.Random) -> None:
    closed(loader, draw)
    loader.close()
    whole(loader, draw)


ENDINGS = (
    *(closed, dropped, whole, broken_off, failed_step, thrown_into, failed_augment, two_alive),
    *(source_closed, twice),
)


# -------------------------------------------------------------------------------- what stays behind


def make(name: str, kind: str, num_workers: int, worker_kind: str, size: list[int] | None):
    transform = none.NoTransform() if size is None else resize.Resize(size, True, True)
    workers = {"num_workers": num_workers, "worker_kind": worker_kind}
    options = {**workers, "transform": transform, "verify": "first_epoch"}
    source = make_source(kind, COUNT, batch_size=BATCH, seed=5, **options)
    device = torch.device("cpu")
    return LOADERS[name](LoaderContext(source, device, lambda batch, epoch: batch, HostClock()))


def cycle(parts: tuple, ending: Callable, draw: random.Random) -> None:
    loader = make(*parts)
    try:
        ending(loader, draw)
    finally:
        loader.close()


def there() -> set[tuple[str, object]]:
    """Return the threads, child processes and open files, and the abandoned shared memory."""
    gc.collect()
    resources: set[tuple[str, object]] = {("thread", t.name) for t in threading.enumerate()}
    resources |= {("process", pid) for pid in children_of_this_process()}
    resources |= {("file", number) for number in os.listdir("/proc/self/fd")}
    return resources | {("shared memory", name) for name in orphaned_memory()}


def left_behind(before: set) -> set:
    """Return the resources beyond ``before`` that are still there after some time."""
    end, left = time.monotonic() + WAIT_S, there() - before
    while left and time.monotonic() < end:
        time.sleep(0.02)
        left &= there()
    return left


def drawn(draw: random.Random) -> tuple:
    kind = draw.choice(STORES)
    return draw.choice([*LOADERS]), kind, *draw.choice(WAYS), draw.choice((None, [8, 8]))


@cache
def warm() -> None:
    """Load, open and start everything that a process loads, opens or starts only once."""
    for kind in ("hdf5", "lmdb", "folder"):
        for way in WAYS:
            cycle(("prefetch", kind, *way, [8, 8]), closed, random.Random(0))
    gc.collect()
    gc.freeze()  # keeps torch's many objects out of the collection after every cycle


def leaves_nothing(draw: random.Random) -> str:
    """Run one cycle. Return what it left behind, or ""."""
    warm()
    parts, ending, before = drawn(draw), draw.choice(ENDINGS), there()
    try:
        cycle(parts, ending, draw)
    except Exception as error:  # noqa: BLE001  # counted, and told with what was done
        message = " ".join(str(error).split())[:300]
        return f"{parts} {ending.__name__}: {type(error).__name__}: {message}"
    left = left_behind(before)
    return f"{parts} {ending.__name__}: {sorted(map(str, left))} left behind" if left else ""


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_stays(draw: random.Random) -> str:
    """Run many cycles of one loader. Return the growth if the second half takes more memory."""
    warm()
    parts, sizes = drawn(draw), []
    for number in range(SERIES):
        cycle(parts, ENDINGS[number % len(ENDINGS)], draw)
        sizes.append(resident_bytes())
    half = SERIES // 2
    growth = (max(sizes[half:]) - max(sizes[:half])) / half
    return f"{parts}: {growth / 1024:.0f} kB a cycle" if growth > MOST_GROWTH else ""
