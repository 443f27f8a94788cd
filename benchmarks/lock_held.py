"""Measure how long reading holds Python's lock, and how fast it reads, without a GPU.

    .venv/bin/python benchmarks/lock_held.py STORE.h5 [WORDS...]

One thread and then two read batches of 256 in slices of 64, while the main thread sleeps. Printed
for each: records per second, and microseconds of the lock per record, which are the CPU time of
the process less that of the threads inside of the compiled functions. WORDS replace those of WAY.
"""

import statistics
import sys
import threading
import time

import torch

from framework.cli.arguments import granted
from framework.cli.hydra_app import composed
from framework.data.reader import Request
from framework.system import native
from framework.trials.probe import Probe

FIXED = ("prepare=null", "data.val=null", "model=resnet9", "augment=normalize", "workers.num=0")
WAY = ("transform=random_resized_crop", "transform.size=[224,224]")
BATCH, SLICE = 256, 64
SECONDS, ROUNDS = 3.0, 7
FIND = native.find


class Inside:
    """Adds up the CPU seconds of all threads inside of compiled functions."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._lock = threading.Lock()

    def find(self, name: str):
        function = FIND(name)

        def timed(*arguments):
            start = time.thread_time()
            result = function(*arguments)
            took = time.thread_time() - start
            with self._lock:
                self.seconds += took
            return result

        return None if function is None else timed


def read(reader, num_records: int, num_threads: int) -> tuple[int, float]:
    """Read for ``SECONDS`` in so many threads. Return the records, and the seconds it took."""
    counts = [0] * num_threads
    stop = time.perf_counter() + SECONDS

    def work(number: int) -> None:
        epoch = number
        while time.perf_counter() < stop:
            indices = torch.randint(num_records, (BATCH,))
            job = reader.begin(Request(epoch, indices, training=True))
            for start in range(0, BATCH, SLICE):
                reader.fill(job, start, start + SLICE)
            reader.finish(job)
            counts[number] += BATCH
            epoch += num_threads

    threads = [threading.Thread(target=work, args=(number,)) for number in range(num_threads)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), time.perf_counter() - start


def main(path: str, words: list[str]) -> None:
    torch.set_num_threads(1)
    words = [*FIXED, *(words or WAY), f"data.train={path}", f"batch_size={BATCH}"]
    config, allowed = composed(words, granted(words))
    inside = Inside()
    for module in list(sys.modules.values()):  # those that come later take it from native
        if getattr(module, "find", None) is FIND:
            module.find = inside.find
    probe = Probe(config, allowed)
    source = probe.assembly.sources["train"]
    read(source.read, source.manifest.num_records, 1)  # the page cache
    for num_threads in (1, 2):
        rates, locks = [], []
        for _ in range(ROUNDS):
            cpu, inside.seconds = time.process_time(), 0.0
            count, seconds = read(source.read, source.manifest.num_records, num_threads)
            rates.append(count / seconds)
            locks.append((time.process_time() - cpu - inside.seconds) / count * 1e6)
        rate, lock = statistics.median(rates), statistics.median(locks)
        print(
            f"{num_threads} threads: {rate:,.0f} records/s "
            f"({min(rates):,.0f} to {max(rates):,.0f}), lock {lock:.1f} us a record "
            f"({min(locks):.1f} to {max(locks):.1f})"
        )
    probe.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
