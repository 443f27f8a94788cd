"""One contestant in a process of its own: ``python -m peers.child JSON``. Says how it went in lines of JSON on standard output.

Lines: ``torch`` (imported), ``imported`` (the contestant's own libraries), ``warm`` (a checked epoch is over), ``done``; or ``failed``.
"""

import importlib
import json
import os
import sys
import time
import traceback
from typing import Any

from peers.work import Work

LAP_S = (
    0.5  # a lap is whole epochs until so many seconds have passed: an epoch of D takes some 5 ms
)


def say(event: str, **facts: Any) -> None:
    os.write(OUT, (json.dumps({"event": event, **facts}) + "\n").encode())


def warm_up(epoch: Any, start: float) -> dict[str, Any]:
    """The first epoch, checked: every record once, shuffled, of one shape; its mean."""
    import torch

    first_s, total, values, seen = None, 0.0, 0, []
    shape, dtype = None, None
    for images, numbers in epoch(0):
        first_s = first_s or time.perf_counter() - start
        shape, dtype = shape or list(images.shape), str(images.dtype)
        if list(images.shape[1:]) != shape[1:] or not images.is_contiguous():
            raise ValueError(
                f"a batch of shape {tuple(images.shape)}, contiguous {images.is_contiguous()}, after {shape}"
            )
        total += float(images.sum(dtype=torch.float64))
        values += images.numel()
        seen += torch.as_tensor(numbers).flatten().tolist()
    facts = {"records": len(seen), "distinct": len(set(seen)), "shuffled": seen != sorted(seen)}
    return {"first_s": first_s, "shape": shape, "dtype": dtype, "mean": total / values, **facts}


def lap(epoch: Any, number: int, num_records: int) -> tuple[int, float]:
    """(next epoch's number, records per second)."""
    start, first, count = time.perf_counter(), number, 0
    while (passed := time.perf_counter() - start) < LAP_S:
        for _, numbers in epoch(number):  # a batch of R is one row of values
            count += len(numbers)
        number += 1
        if count != (number - first) * num_records:
            raise ValueError(f"{count} records in {number - first} epochs of {num_records}")
    return number, count / passed


def called(name: str) -> Any:
    """``peers.dali.jpeg`` -> the function."""
    module, _, function = name.rpartition(".")
    return getattr(importlib.import_module(module), function)


def compete(name: str, work: dict[str, Any], laps: int) -> None:
    import torch

    torch.set_num_threads(work["num_workers"])
    say("torch")
    sys.stdin.readline()  # while the memory is looked at
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
