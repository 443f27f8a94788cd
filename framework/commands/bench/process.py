"""A process for a single measurement, which is ended with everything that it started."""

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

END_S = 10  # how long a process may take to clean up
OF_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def measure_cell(cell: BenchCell, plan: BenchPlan) -> dict[str, Any]:
    """Return ``windows``, ``spans_s`` and ``yardstick_per_s`` of a measurement.

    If it fails, return why in a line: as ``illegal`` if the choice cannot run, else as ``failed``.
    """
    with scratch_folder("paceline-bench-") as folder:
        spec = Path(folder, "spec.json")
        result = Path(folder, "found.json")
        output = Path(folder, "stderr.txt")
        request = {"config": cell.config, "allowed": cell.allowed, **asdict(plan)}
        spec.write_text(json.dumps(request), encoding="utf-8")
        code = _wait([sys.executable, "-m", "framework.commands.bench.cell", str(spec)], output)
        if result.exists():
            return json.loads(result.read_text(encoding="utf-8"))
        words = last_line(output.read_text(encoding="utf-8", errors="replace"), 300)
        return {"failed": ": ".join([f"the process ended with exit code {code}", *words])}


def last_line(text: str, most: int) -> list[str]:
    """Return the last line that is not blank, if any, cut to ``most`` characters."""
    return [" ".join(line.split())[:most] for line in text.strip().splitlines()[-1:]]


def _wait(command: list[str], output: Path) -> int:
    """Run a command in a session of its own, which Ctrl-C does not reach. Return its exit code."""
    environment = {name: value for name, value in os.environ.items() if name not in OF_LAUNCHER}
    with (
        open(output, "wb") as errors,
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
            end_session(process, END_S)


def end_session(process: subprocess.Popen[Any], grace_s: float) -> None:
    """End the process within ``grace_s``, then kill its session.

    Ranks have sessions of their own and die with the process that started them.
    """
    try:
        if grace_s and process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
    finally:  # also after a second Ctrl-C
        if process.returncode != 0:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
