"""A process that measures settings: ``python -m framework.trials.measure_setting``.

Each line of standard input is a request of a `TrialProcess`, answered by a line of JSON. Whatever
else is printed goes to standard error. With ``parallel=ddp`` it starts ranks, which run this module
with the file of a request as argument, and combines their answers.
"""

import hashlib
import json
import os
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from framework import errors
from framework.cli.arguments import find_packages
from framework.config.assemble import Assembly
from framework.data.dali import DALISource
from framework.data.dataloader import LoaderSource
from framework.data.dataset import DatasetSource
from framework.data.source import StoreSource
from framework.data.synthetic import SyntheticSource
from framework.measure import host
from framework.system.durable import write_json
from framework.system.memory import give_back_freed_memory
from framework.system.portable import limit_data
from framework.system.stopping import die_with_parent, install, leave, scratch_folder, set_all
from framework.system.user_code import user_error
from framework.trials.probe import Probe
from framework.trials.trial_process import MODULE, ReadFacts

Answer = dict[str, Any]


def main() -> None:
    """Answer until the input ends; as a rank, answer the request of a file beside it."""
    die_with_parent()
    if len(sys.argv) > 1:
        set_all(signal.SIG_DFL)
        path = Path(sys.argv[1])
        answer = answer_to(json.loads(path.read_text(encoding="utf-8")))
        write_json(path.with_name(f"answer.rank{os.environ['RANK']}.json"), answer)
        leave(int("windows" not in answer))
    install()  # so that workers and files are cleaned up
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        print(json.dumps(answer_to(json.loads(line))), file=answers, flush=True)
    leave(0)


def answer_to(request: dict[str, Any]) -> Answer:
    """Return the figures, or what was raised and whether memory was used up."""
    allowed = tuple(request["allowed"])
    find_packages(allowed)
    torch.set_num_threads(host.threads_per_rank())  # as training does
    num_ranks = request["config"]["parallel"].get("num_processes")
    try:
        if num_ranks is not None and "RANK" not in os.environ:
            return measure_ranks(request, num_ranks)
        return measure(request, allowed)
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        answer: Answer = {"memory": is_memory(error)}
        fault = error if isinstance(error, errors.PacelineError) else user_error(error, allowed)
        if fault is not None:
            return {**answer, "error": [type(fault).__name__, list(fault.args)]}
        errors.say(traceback.format_exc(), sys.stderr)
        return {**answer, "failed": f"{type(error).__name__}: {errors.words_of(error)}"}


def measure(request: dict[str, Any], allowed: tuple[str, ...]) -> Answer:
    """Measure the part ``what`` of a setting, or describe how the setting reads (``facts``)."""
    what = request["what"]
    answer: Answer = {}
    if what not in ("facts", "visit"):
        answer["yardstick_per_s"] = yardstick()
    with closing(Probe(request["config"], allowed, epoch=request["epoch"])) as probe:
        device = probe.assembly.device
        limit_memory(device, request["limit"])
        if what == "facts":
            return read_facts(probe.assembly)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            give_back_freed_memory()  # what malloc keeps is no part of the peak
            with suppress(OSError):  # Linux only, proc(5): clear_refs
                Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        rate = getattr(probe, what)(request["seconds"], request["burn_in"])
        figures = {"windows": rate.windows, "spans_s": rate.spans_s, "step_s": rate.step_s}
        if device.type == "cuda":
            peak_bytes = torch.cuda.max_memory_reserved(device)
        else:
            peak_bytes = _status_bytes("VmHWM")
        return {**figures, **answer, "peak_bytes": peak_bytes}


def measure_ranks(request: dict[str, Any], num_ranks: int) -> Answer:
    from framework.parallel.start_ranks import launch  # noqa: PLC0415  # slow to import

    with scratch_folder("paceline-trial-") as folder:
        path = Path(folder, "request.json")
        path.write_text(json.dumps(request), encoding="utf-8")
        lost = "a rank ended without a result"
        threads = {"OMP_NUM_THREADS": str(max(1, host.num_cores() // num_ranks))}
        try:
            launch(num_ranks, MODULE, [str(path)], threads)
        except errors.DistributedError as error:
            lost = str(error)
        files = sorted(Path(folder).glob("answer.rank*.json"))
        answers = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    wrong = [answer for answer in answers if "windows" not in answer]
    if wrong:
        return next((answer for answer in wrong if "error" in answer), wrong[0])
    if len(answers) < num_ranks:
        return {"failed": lost}
    return together(answers)


def together(ranks: list[Answer]) -> Answer:
    """Combine the answers of ranks: add their records per second, average their spans."""
    names = ranks[0]["spans_s"]
    spans = {name: fmean(rank["spans_s"].get(name, 0.0) for rank in ranks) for name in names}
    windows = [sum(rates) for rates in zip(*(rank["windows"] for rank in ranks), strict=False)]
    return {**ranks[0], "windows": windows, "spans_s": spans}


def read_facts(assembly: Assembly) -> Answer:
    source: Any = assembly.train_source
    cores = host.cores_per_rank()
    num_workers = assembly.config["workers"]["num"]
    if num_workers is None:
        num_workers = cores
    kinds: tuple[str, ...] = ("thread", "process")
    decodes = True  # a source of the user may
    if isinstance(source, StoreSource):
        num_workers = source.workers.num
        decodes = source.read.decodes
        kinds = kinds if decodes else ("thread",)
    elif isinstance(source, DatasetSource):
        num_workers = source.workers.num
        kinds = (source.workers.kind,)  # only its author knows whether threads may share it
    elif isinstance(source, DALISource):
        num_workers = max(1, num_workers)
        kinds = ("thread",)
    elif isinstance(source, SyntheticSource | LoaderSource):
        num_workers, decodes, kinds = 0, False, ()
    is_cuda = assembly.device.type == "cuda"
    return ReadFacts(cores, is_cuda, decodes, kinds, num_workers, source.order.num_used)._asdict()


def yardstick() -> float:
    """Return the MiB per second that all cores hash together, whatever the code is."""
    cores = host.num_cores()
    block = bytes(1 << 20)  # hashing a large block releases Python's lock, so all cores work
    end = time.perf_counter() + 0.1

    def rate(_: int) -> float:
        start = time.perf_counter()
        count = 0
        while count == 0 or time.perf_counter() < end:
            hashlib.sha256(block).digest()
            count += 1
        return count / (time.perf_counter() - start)

    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(rate, range(cores)))


def is_memory(error: BaseException) -> bool:
    """Return whether an error, here or in a worker, means that memory is used up."""
    is_refused = isinstance(error, errors.ResourceError) and error.args[0] in (104, 107)
    refusal = errors.REFUSALS.search(errors.words_of(error))
    return is_refused or errors.lacks_memory(error) or refusal is not None


def limit_memory(device: torch.device, limit: int | str | None) -> None:
    """Let this process take ``limit`` bytes more and no more, of the memory that steps use.

    ``free`` is what the host has available, less a spare. A larger request fails before any page is
    touched (RLIMIT_DATA). If the kernel runs out of memory anyway, it ends this process first.
    """
    if device.type == "cuda":
        if isinstance(limit, int):
            total_bytes = torch.cuda.get_device_properties(device).total_memory
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total_bytes), device)
        return
    if limit == "free":
        limit = max(0, host.available_memory_bytes() - host.spare_bytes())
    if not isinstance(limit, int):
        return
    with suppress(OSError):  # not Linux
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    limit_data(_status_bytes("VmData") + limit)


def _status_bytes(name: str) -> int:
    """Return an entry of /proc/self/status, or 0: psutil does not know VmHWM."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return 1024 * int(line.split()[1])
    return 0


if __name__ == "__main__":
    main()
