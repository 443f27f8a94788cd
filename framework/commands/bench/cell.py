"""A measurement in a process of its own: ``python -m framework.commands.bench.cell SPEC``.

`process.measure_cell` writes SPEC. With ``parallel=ddp`` this process starts the ranks, which run
the same module, and combines their results.
"""

import hashlib
import json
import os
import signal
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from framework.cli.allowed import find_packages
from framework.errors import DistributedError, PacelineError, say, words_of
from framework.measure.host import num_cores, threads_per_rank
from framework.system.durable import write_json
from framework.system.stopping import die_with_parent, install, leave, set_all
from framework.system.user_code import user_error
from framework.trials.probe import Probe

Result = dict[str, Any]
BLOCK = bytes(1 << 20)  # hashing a large block releases Python's lock, so all cores work
YARDSTICK_S = 0.1
PARTS = {"train": Probe.train, "loader": Probe.loader, "host": Probe.host, "compute": Probe.compute}


def main(path: Path) -> int:
    """Measure, and write the result beside SPEC. Return the exit code."""
    die_with_parent()
    name = "found.json"
    rank = os.environ.get("RANK")
    if rank is None:
        install()  # so that workers and files are cleaned up
    else:
        set_all(signal.SIG_DFL)
        name = f"found.rank{rank}.json"
    result = _measured_by(rank, path)
    write_json(path.with_name(name), result)
    return int("windows" not in result)


def _measured_by(rank: str | None, path: Path) -> Result:
    """Measure as a rank, or alone; without a rank, start the ranks of a choice that has any."""
    spec = json.loads(path.read_text(encoding="utf-8"))
    find_packages(spec["allowed"])
    torch.set_num_threads(threads_per_rank())  # as training does
    parallel = spec["config"]["parallel"]
    if rank is None and "num_processes" in parallel:
        return measure_ranks(path, parallel["num_processes"])
    return measure(spec)


def measure(spec: Result) -> Result:
    """Return ``windows``, ``spans_s`` and ``yardstick_per_s``, or why there are none.

    The reason is a line: ``illegal`` if the choice cannot run, else ``failed``.
    """
    try:
        speed = yardstick()
        with closing(Probe(spec["config"], spec["allowed"])) as probe:
            rate = PARTS[spec["what"]](probe, spec["seconds"], spec["burn_in"])
    except PacelineError as error:
        return {"illegal": str(error)}
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything
        say(traceback.format_exc(), sys.stderr)
        if fault := user_error(error, spec["allowed"]):
            return {"illegal": str(fault)}
        return {"failed": f"{type(error).__name__}: {words_of(error)}"}
    return {"windows": rate.windows, "spans_s": rate.spans_s, "yardstick_per_s": speed}


def measure_ranks(path: Path, num_processes: int) -> Result:
    """Start the ranks, and combine the results that they write beside the SPEC at ``path``."""
    from framework.parallel.launch.start_ranks import launch  # noqa: PLC0415  # slow to import

    environment = {"OMP_NUM_THREADS": str(max(1, num_cores() // num_processes))}
    lost = "a rank ended without a result"
    try:
        launch(num_processes, "framework.commands.bench.cell", [str(path)], environment)
    except DistributedError as error:
        lost = str(error)
    files = sorted(path.parent.glob("found.rank*.json"))
    results = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    wrong = [result for result in results if "windows" not in result]
    if wrong:
        return next((result for result in wrong if "illegal" in result), wrong[0])
    if len(results) < num_processes:
        return {"failed": lost}
    return together(results)


def together(ranks: list[Result]) -> Result:
    """Combine the results of ranks: add their records per second, average their spans."""
    spans = {
        name: sum(rank["spans_s"].get(name, 0.0) for rank in ranks) / len(ranks)
        for name in ranks[0]["spans_s"]
    }
    windows = [sum(rates) for rates in zip(*(rank["windows"] for rank in ranks), strict=False)]
    return {"windows": windows, "spans_s": spans, "yardstick_per_s": ranks[0]["yardstick_per_s"]}


def yardstick() -> float:
    """Return the MiB per second that all cores of this process hash together.

    This is the speed of the machine itself, which no change of the code can slow down.
    """
    cores = num_cores()
    end = time.perf_counter() + YARDSTICK_S
    with ThreadPoolExecutor(cores) as pool:
        return sum(pool.map(_hash, [end] * cores))


def _hash(end: float) -> float:
    start = time.perf_counter()
    count = 0
    while count == 0 or time.perf_counter() < end:
        hashlib.sha256(BLOCK).digest()
        count += 1
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    leave(main(Path(sys.argv[1])))
