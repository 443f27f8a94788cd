"""A process in which batch sizes are tried: it may run out of memory, and the one that asked goes on.

``python -m framework.commands.tune.trial``: the first line of standard input says what to train, each further one which batch size to try. Every
line is answered by one of JSON; what anything else prints goes to standard error.
"""

import json
import os
import signal
import sys
from typing import Any, TextIO

import torch

from framework.commands.probe import Probe
from framework.commands.tune.measured_run import visit
from framework.commands.tune.memory import forget_peak, limit_this_process, peak_bytes
from framework.errors import PacelineError, words_of
from framework.measure.host import threads_per_rank
from framework.system.stopping import die_with_parent, set_all
from framework.system.user_code import user_error

Config = dict[str, Any]
BURN_IN_S = 0.15
MEMORY_WORDS = (
    "allocate memory",
    "out of memory",
    "bad_alloc",
    "bad alloc",
    "MemoryError",
    "Cannot allocate",
    "Unable to allocate",
)


def sized(config: Config, batch_size: int) -> Config:
    """``config`` with so many records a step, or in a rank's pass where that is what it sets."""
    key = "batch_size" if config["rank_batch_size"] is None else "rank_batch_size"
    return {**config, key: batch_size}


def is_memory(error: BaseException) -> bool:
    """Whether an error is that of memory used up, on either device, here or in a worker."""
    text = f"{type(error).__name__} {words_of(error)}"
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or any(
        word in text for word in MEMORY_WORDS
    )


def begin(config: Config, allowed: tuple[str, ...], limit_bytes: int | None) -> dict[str, Any]:
    """Get ready: threads as a run has them, memory limited. What the run is like: ``num_records`` of an epoch, ``cuda``."""
    torch.set_num_threads(threads_per_rank())
    probe = Probe(config, allowed)
    try:
        facts = {
            "num_records": probe.assembly.train_source.order.num_used,
            "cuda": probe.assembly.device.type == "cuda",
        }
        if facts["cuda"] and limit_bytes is not None:
            whole = torch.cuda.get_device_properties(probe.assembly.device).total_memory
            torch.cuda.set_per_process_memory_fraction(
                min(1.0, limit_bytes / whole), probe.assembly.device
            )
        elif limit_bytes is not None:
            limit_this_process(limit_bytes)
    finally:
        probe.close()
    return facts


def attempt(
    config: Config, allowed: tuple[str, ...], request: dict[str, Any], cuda: bool
) -> dict[str, Any]:
    """Some steps of ``request['batch_size']`` records: their rates and the most memory they took, or why they cannot be taken."""
    _forget(cuda)
    try:
        found = visit(
            sized(config, request["batch_size"]),
            allowed,
            request["epoch"],
            request["seconds"],
            BURN_IN_S,
        )
    except PacelineError as error:
        return {
            "why": str(error),
            "memory": is_memory(error),
            "error": [type(error).__name__, list(error.args)],
        }
    except Exception as error:  # noqa: BLE001  # whatever a model says to a batch too large for it
        why = str(user_error(error, allowed) or f"{type(error).__name__}: {words_of(error)}")
        return {"why": why[:300], "memory": is_memory(error)}
    return {"rates": [found.rate], "step_s": found.step_s, "peak_bytes": _peak(cuda)}


def _forget(cuda: bool) -> None:
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()


def _peak(cuda: bool) -> int:
    return torch.cuda.max_memory_reserved() if cuda else peak_bytes()


def _answers() -> TextIO:
    """Standard output for answers alone: what anybody else prints goes to standard error."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def main() -> None:
    """Answer until standard input ends, or until memory was used up: the next process begins with a clean heap."""
    die_with_parent()
    set_all(signal.SIG_IGN)  # the parent decides
    answers = _answers()
    first = json.loads(sys.stdin.readline())
    config, allowed = first["config"], tuple(first["allowed"])
    try:
        facts = begin(config, allowed, first["limit_bytes"])
    except PacelineError as error:
        print(
            json.dumps({"error": [type(error).__name__, list(error.args)]}),
            file=answers,
            flush=True,
        )
        return
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        answer = attempt(config, allowed, json.loads(line), facts["cuda"])
        print(json.dumps(answer), file=answers, flush=True)
        if "why" in answer:
            break


if __name__ == "__main__":
    main()
