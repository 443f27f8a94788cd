"""A process for one measurement: started, waited for, and ended with all it started, whatever happens here."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from framework.commands.bench.grid import BenchCell, BenchPlan
from framework.system.stopping import polite, scratch_folder

END_S = 10  # how long a process may take to give back what it has
OF_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def measure_cell(cell: BenchCell, plan: BenchPlan) -> dict[str, Any]:
    """``windows``, ``spans_s`` and ``yardstick_per_s``; or ``illegal`` or ``failed``: why there are none, in one line."""
    with scratch_folder("paceline-bench-") as folder:
        spec, found = Path(folder, "spec.json"), Path(folder, "found.json")
        words = {"config": cell.config, "allowed": cell.allowed, **asdict(plan)}
        spec.write_text(json.dumps(words), encoding="utf-8")
        said = Path(folder, "stderr.txt")
        code = _wait([sys.executable, "-m", "framework.commands.bench.cell", str(spec)], said)
        if found.exists():
            return json.loads(found.read_text(encoding="utf-8"))
        return {"failed": f"the process ended with exit code {code}{_last_line(said)}"}


def _wait(command: list[str], said: Path) -> int:
    """Its exit code. In a session of its own, so that Ctrl-C comes to us alone, and we end it with all that it started."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHER}
    with (
        open(said, "wb") as errors,
        subprocess.Popen(  # noqa: S603  # our own module
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            with polite(process.pid):
                return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the process to end, then end its whole session; ranks, in sessions of their own, die with the process that started them."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
    finally:  # also at a second Ctrl-C
        if process.returncode != 0:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_line(said: Path) -> str:
    lines = said.read_text(encoding="utf-8", errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f": {' '.join(last.split())[:300]}" if last else ""
