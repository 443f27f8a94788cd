"""Run a contestant in this process: ``python -m peers.child JSON``.

`peers.measure` starts this module and reads lines of JSON from its standard output. The events are

- ``torch``: torch is imported
- ``imported``: the contestant's own libraries are imported
- ``warm``: the checked epoch is over
- ``done``: the timed laps are over
- ``made``: the contestant's own format is written
- ``failed``: an error ended the contestant
"""

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

from peers.work import Work

# A lap is whole epochs until so many seconds have passed: an epoch of D takes some 5 ms.
LAP_S = 0.5


def say(event: str, **facts: Any) -> None:
    """Write a line of JSON to the standard output that `peers.measure` reads."""
    os.write(OUT, (json.dumps({"event": event, **facts}) + "\n").encode())


def warm_up(epoch: Any, start: float) -> dict[str, Any]:
    """Run the first epoch, and return what it shows.

    Facts are its numbers of records and of distinct records, whether they are shuffled, the shape
    and dtype of batches, the mean of all values, and the seconds until the first batch.

    Raises:
        ValueError: A batch is not contiguous, or its images have another shape than the first's.
    """
    import torch

    first_s, total, values, seen = None, 0.0, 0, []
    shape, dtype = None, None
    for images, numbers in epoch(0):
        first_s = first_s or time.perf_counter() - start
        shape, dtype = shape or list(images.shape), str(images.dtype)
        if list(images.shape[1:]) != shape[1:] or not images.is_contiguous():
            raise ValueError(
                f"a batch of shape {tuple(images.shape)}, "
                f"contiguous {images.is_contiguous()}, after {shape}"
            )
        total += float(images.sum(dtype=torch.float64))
        values += images.numel()
        seen += torch.as_tensor(numbers).flatten().tolist()
    facts = {"records": len(seen), "distinct": len(set(seen)), "shuffled": seen != sorted(seen)}
    return {"first_s": first_s, "shape": shape, "dtype": dtype, "mean": total / values, **facts}


def lap(epoch: Any, number: int, num_records: int) -> tuple[int, float]:
    """Run a timed lap. Return the next epoch's number, and the records per second.

    Raises:
        ValueError: The epochs do not have ``num_records`` records each.
    """
    start, first, count = time.perf_counter(), number, 0
    while (passed := time.perf_counter() - start) < LAP_S:
        for _, numbers in epoch(number):  # a batch of R is one row of values
            count += len(numbers)
        number += 1
        if count != (number - first) * num_records:
            raise ValueError(f"{count} records in {number - first} epochs of {num_records}")
    return number, count / passed


def called(name: str) -> Any:
    """Import and return a function by its full name, such as ``peers.dali.jpeg``."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


def compete(name: str, work: dict[str, Any], laps: int) -> None:
    """Run a contestant: a checked epoch, then timed laps.

    After the events ``torch``, ``warm`` and ``done``, it waits for a line from `peers.measure`,
    which measures the memory meanwhile.
    """
    import torch

    torch.set_num_threads(work["num_workers"])
    say("torch")
    sys.stdin.readline()
    enter = called(name)
    say("imported")
    start = time.perf_counter()
    epoch = enter(Work(**work))
    say("warm", **warm_up(epoch, start))
    sys.stdin.readline()
    number, rates = 1, []
    for _ in range(laps):
        number, rate = lap(epoch, number, work["num_records"])
        rates.append(rate)
    say("done", rates=rates)
    sys.stdin.readline()


def main() -> None:
    order = json.loads(sys.argv[1])
    try:
        if order["make"]:
            called(order["call"])(Work(**order["work"]))
            say("made")
        else:
            compete(order["call"], order["work"], order["laps"])
    except Exception as error:
        traceback.print_exc()
        what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        say("failed", failed=what.replace("ModuleNotFoundError: No module named", "not installed:"))


if __name__ == "__main__":
    OUT = os.dup(1)  # whatever a library prints goes to standard error
    os.dup2(2, 1)
    main()
