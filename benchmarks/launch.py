"""Measure what reading costs the thread that launches kernels, without a GPU.

    python benchmarks/launch.py STORE.h5 [WORDS...]

The main thread issues small torch operations, as a training step does on a GPU. Beside it, a source
reads batches of STORE with the given words, such as ``workers.num=1 transform=random_resized_crop
'transform.size=[224,224]'``. The reference is the same thread beside one that hashes 64 MB blocks,
which needs a core and memory but never Python's lock.

Seven pairs take turns. Printed: the median share of the reference's operations per second (and all
seven), the share of those issued alone, and the records read per second. Each thread needs a core
of its own: on two cores, use one worker.
"""

import argparse
import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import NamedTuple

import torch

from framework.cli.arguments import granted
from framework.cli.hydra_app import composed
from framework.trials.probe import Probe

WORDS = (
    "prepare=null",
    "data.val=null",
    "model=resnet9",
    "augment=normalize",
    "batch_size=64",
    "last=drop",
)
PAIRS = 7
ALONE_S = 2.0
REFERENCE_S = 3.0
BESIDE_S = 4.0
START_S = 2.5  # until workers have started
OPERATIONS = 20  # between two looks at the clock
BLOCK = bytes(64 << 20)


class Beside(NamedTuple):
    operations_per_s: float
    records_per_s: float


def launch(seconds: float) -> float:
    """Issue small operations for so long. Return how many of them per second."""
    numbers = torch.ones(8)
    count = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        for _ in range(OPERATIONS):
            numbers.add_(1)
        count += OPERATIONS
    return count / (time.perf_counter() - start)


@contextmanager
def repeated(work: Callable[[threading.Event], object]) -> Generator[None]:
    """Call ``work`` again and again in a thread. It returns early once its argument is set."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work(stop)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def beside_hashing(seconds: float = REFERENCE_S) -> float:
    with repeated(lambda _: hashlib.sha256(BLOCK)):
        return launch(seconds)


def beside_reading(words: list[str], seconds: float = BESIDE_S, start_s: float = START_S) -> Beside:
    """Launch operations while a source reads, as its configuration in ``words`` says."""
    num_read = 0
    epoch = 0
    with closing(Probe(*composed([*WORDS, *words], granted(words)))) as probe:
        source = probe.assembly.train_source

        def read(stop: threading.Event) -> None:
            nonlocal num_read, epoch
            with closing(source.batches(epoch)) as batches:
                for micro in batches:
                    num_read += len(micro.batch["index"])
                    if stop.is_set():
                        return
            epoch += 1

        with repeated(read):
            time.sleep(start_s)
            before = num_read
            start = time.perf_counter()
            operations_per_s = launch(seconds)
            return Beside(operations_per_s, (num_read - before) / (time.perf_counter() - start))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("store")
    parser.add_argument("words", nargs="*", help="as of paceline train")
    given = parser.parse_args()
    torch.set_num_threads(1)
    alone = launch(ALONE_S)
    shares: list[float] = []
    results: list[Beside] = []
    for _ in range(PAIRS):
        reference = beside_hashing()
        results.append(beside_reading([f"data.train={given.store}", *given.words]))
        shares.append(results[-1].operations_per_s / reference)
    of_alone = statistics.median(result.operations_per_s for result in results) / alone
    rate = statistics.median(result.records_per_s for result in results)
    print(
        f"{statistics.median(shares):.2f} of the reference "
        f"({' '.join(f'{share:.2f}' for share in shares)}), {of_alone:.2f} of alone; "
        f"{rate:,.0f} records/s read"
    )


if __name__ == "__main__":
    main()
