"""A process that tries batch sizes and may run out of memory: ``python -m`` this module.

The first line of standard input says what to train, each further line which batch size to try.
Every line is answered by a line of JSON. Everything else that is printed goes to standard error.
"""

import json
import os
import resource
import signal
import sys
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TextIO

import torch

from framework.errors import PacelineError, ResourceError, words_of
from framework.measure.host import threads_per_rank
from framework.system.malloc import give_back_freed_memory
from framework.system.no_memory import WORDS, lacks_memory
from framework.system.stopping import die_with_parent, leave, set_all
from framework.system.user_code import user_error
from framework.trials.probe import Probe, visit

Config = dict[str, Any]


def main() -> None:
    """Answer until the input ends or a size does not run: the next needs a new process."""
    die_with_parent()
    set_all(signal.SIG_IGN)  # the parent decides
    answers = take_output()
    first = json.loads(sys.stdin.readline())
    config = first["config"]
    allowed = tuple(first["allowed"])
    facts = _begun(config, allowed, first["limit_bytes"])
    print(json.dumps(facts), file=answers, flush=True)
    if "error" in facts:
        return
    for line in sys.stdin:
        answer = attempt(config, allowed, json.loads(line), facts["cuda"])
        print(json.dumps(answer), file=answers, flush=True)
        if "why" in answer:
            break


def take_output() -> TextIO:
    """Return standard output for answers. Everything else that is printed goes to stderr."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(kept, "w", encoding="utf-8")


def _begun(config: Config, allowed: tuple[str, ...], limit_bytes: int | None) -> dict[str, Any]:
    """Return what `begin` returns, or the error that it raises."""
    try:
        return begin(config, allowed, limit_bytes)
    except PacelineError as error:
        return {"error": _as_json(error)}


def _as_json(error: PacelineError) -> list[Any]:
    """Return what the parent needs to raise the error: the name of its class, and its words."""
    return [type(error).__name__, list(error.args)]


def begin(config: Config, allowed: tuple[str, ...], limit_bytes: int | None) -> dict[str, Any]:
    """Prepare this process. Return the records of an epoch, and whether it uses CUDA."""
    torch.set_num_threads(threads_per_rank())
    with closing(Probe(config, allowed)) as probe:
        device = probe.assembly.device
        num_records = probe.assembly.train_source.order.num_used
        if device.type == "cuda" and limit_bytes is not None:
            total_bytes = torch.cuda.get_device_properties(device).total_memory
            share = min(1.0, limit_bytes / total_bytes)
            torch.cuda.set_per_process_memory_fraction(share, device)
        elif limit_bytes is not None:
            limit_this_process(limit_bytes)
        return {"num_records": num_records, "cuda": device.type == "cuda"}


def attempt(
    config: Config, allowed: tuple[str, ...], request: dict[str, Any], cuda: bool
) -> dict[str, Any]:
    """Take steps of a size. Return their rates and memory, or why they failed."""
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    else:
        forget_peak()
    tried = sized(config, request["batch_size"])
    try:
        measured = visit(tried, allowed, request["epoch"], request["seconds"])
    except PacelineError as error:
        return {"why": str(error), "memory": is_memory(error), "error": _as_json(error)}
    except Exception as error:  # noqa: BLE001  # a model may raise anything if a batch is too large
        why = str(user_error(error, allowed) or f"{type(error).__name__}: {words_of(error)}")
        return {"why": why[:300], "memory": is_memory(error)}
    peak = torch.cuda.max_memory_reserved() if cuda else peak_bytes()
    return {"rates": [measured.rate], "step_s": measured.step_s, "peak_bytes": peak}


def sized(config: Config, batch_size: int) -> Config:
    """Return ``config`` with this ``batch_size``, or ``rank_batch_size`` if it sets that."""
    key = "batch_size" if config["rank_batch_size"] is None else "rank_batch_size"
    return {**config, key: batch_size}


def is_memory(error: BaseException) -> bool:
    """Return whether an error, here or in a worker, means that memory is used up."""
    is_refused = isinstance(error, ResourceError) and error.args[0] in (104, 107)
    return is_refused or lacks_memory(error) or any(word in words_of(error) for word in WORDS)


def limit_this_process(num_bytes: int) -> None:
    """Let this process take ``num_bytes`` more and no more (RLIMIT_DATA).

    A larger request fails before any page is touched. If the kernel runs out of memory anyway,
    it ends this process first.
    """
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    wanted = _status_bytes("VmData") + num_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def forget_peak() -> None:
    """Restart the measurement of `peak_bytes`, without what malloc keeps."""
    give_back_freed_memory()
    with suppress(OSError):  # Linux only, proc(5): clear_refs
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_bytes() -> int:
    """Return the most physical memory held since `forget_peak`; 0 if the system does not say."""
    return _status_bytes("VmHWM")


def _status_bytes(name: str) -> int:
    """Return an entry of /proc/self/status; 0 if it is missing. psutil does not know VmHWM."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return 0


if __name__ == "__main__":
    main()
    leave(0)
