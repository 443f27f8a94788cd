"""One measurement in a process of its own: ``python -m framework.commands.bench.cell SPEC``. Private to ``process.py``, which writes SPEC.

Under ``parallel=ddp`` this process starts the ranks, which are the same module again, and adds up what they found.
"""

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

import torch

from framework.commands.bench.yardstick import yardstick
from framework.commands.probe import Probe, measured
from framework.errors import DistributedError, PacelineError, words_of
from framework.measure.host import num_cores, threads_per_rank
from framework.system.durable import write_json
from framework.system.stopping import die_with_parent, install, set_all
from framework.system.user_code import user_error

Found = dict[str, Any]
PARTS = {"train": Probe.train, "loader": Probe.loader, "host": Probe.host, "compute": Probe.compute}


def measure(spec: Found) -> Found:
    """``windows`` and ``spans_s`` of a Rate, and the machine's own speed; or ``illegal``, the reason in a line; or ``failed``."""
    part = PARTS[spec["what"]]
    try:
        speed = yardstick()
        rate = measured(
            spec["config"],
            spec["allowed"],
            lambda probe: part(probe, spec["seconds"], spec["burn_in"]),
        )
    except PacelineError as error:
        return {"illegal": str(error)}
    except Exception as error:  # noqa: BLE001  # the user's code may raise anything, and out of memory has many names
        traceback.print_exc()
        fault = user_error(error, spec["allowed"])
        if fault is not None:
            return {"illegal": str(fault)}
        return {"failed": f"{type(error).__name__}: {words_of(error)}"}
    return {"windows": rate.windows, "spans_s": rate.spans_s, "yardstick_per_s": speed}


def together(ranks: list[Found]) -> Found:
    """What ranks that worked side by side found: records add up, spans are those of the mean rank."""
    spans = {
        name: sum(rank["spans_s"].get(name, 0.0) for rank in ranks) / len(ranks)
        for name in ranks[0]["spans_s"]
    }
    windows = [sum(rates) for rates in zip(*(rank["windows"] for rank in ranks), strict=False)]
    return {"windows": windows, "spans_s": spans, "yardstick_per_s": ranks[0]["yardstick_per_s"]}


def _launch(path: Path, num_processes: int) -> Found:
    """Start the ranks and wait for what each leaves beside SPEC."""
    from framework.parallel.launch.start_ranks import launch  # noqa: PLC0415  # torch.distributed.elastic is slow to import

    threads = str(max(1, num_cores() // num_processes))
    lost = ""
    try:
        launch(
            num_processes,
            "framework.commands.bench.cell",
            [str(path)],
            {"OMP_NUM_THREADS": threads},
        )
    except DistributedError as error:
        lost = str(error)
    found = [
        json.loads(rank.read_text(encoding="utf-8"))
        for rank in sorted(path.parent.glob("found.rank*.json"))
    ]
    wrong = [rank for rank in found if "windows" not in rank]
    if wrong:
        return next((rank for rank in wrong if "illegal" in rank), wrong[0])
    return (
        together(found)
        if len(found) == num_processes
        else {"failed": lost or "a rank ended without a word"}
    )


def main(path: Path) -> int:
    """Measure, and leave what was found beside SPEC. 0: all went well."""
    die_with_parent()
    if "RANK" in os.environ:
        set_all(signal.SIG_DFL)
    else:
        install()  # workers and files are given back
    spec = json.loads(path.read_text(encoding="utf-8"))
    if spec["allowed"]:
        sys.path.append(os.getcwd())
    torch.set_num_threads(threads_per_rank())  # as training does
    rank = os.environ.get("RANK")
    starts_ranks = rank is None and "num_processes" in spec["config"]["parallel"]
    found = (
        _launch(path, spec["config"]["parallel"]["num_processes"])
        if starts_ranks
        else measure(spec)
    )
    write_json(path.with_name("found.json" if rank is None else f"found.rank{rank}.json"), found)
    return 0 if "windows" in found else 1


def _leave(code: int) -> NoReturn:
    """A rank leaves without tearing Python down: gloo's threads, when they wake in that, abort one exit in five."""
    sys.stderr.flush()
    if "RANK" in os.environ:
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    _leave(main(Path(sys.argv[1])))
