"""Run a contestant in a process of its own, and measure it from outside.

The contestant reports its rates (see `peers.child`). This module measures the seconds that its
imports take, and the memory of the whole process tree.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from peers.work import Work

HERE = Path(__file__).parent.parent
# Measure the framework of this checkout.
PATH = os.pathsep.join([str(HERE), str(HERE.parent)])
# Time for a contestant to end by itself: mosaicml-streaming removes its shared memory then.
END_S = 15.0
# Between two looks at the memory in the warm-up epoch. Nothing looks while laps are timed.
LOOK_S = 0.05


def run(
    enter: str, work: Work, laps: int, log: Path, timeout_s: float, before: str = ""
) -> dict[str, Any]:
    """Run a contestant, and return what is known of it.

    ``before`` is the folder of a revision of Paceline, if this one shall not be used.

    Returns:
        - ``rates``: records per second of each lap
        - ``first_s``: seconds from the end of the imports to the first batch
        - ``imports_s``: seconds from the start of the process to the end of the imports
        - ``memory_bytes``: the most memory in the checked epoch or after the laps, beyond that of
          importing torch
        - ``warm_bytes`` and ``done_bytes``: the memory after the checked epoch and after the laps
        - what the checked epoch shows (see `peers.child.warm_up`)

        If the contestant fails, ``failed`` says why.
    """
    order = {"call": enter, "make": False, "work": asdict(work), "laps": laps}
    return _converse(order, log, timeout_s, before)


def make(function: str, work: Work, log: Path, timeout_s: float) -> dict[str, Any]:
    """Have a contestant write its own format. If it fails, ``failed`` in the result says why."""
    return _converse({"call": function, "make": True, "work": asdict(work)}, log, timeout_s)


def _converse(
    order: dict[str, Any], log: Path, timeout_s: float, before: str = ""
) -> dict[str, Any]:
    # Libraries such as litdata keep files in the home directory. They belong in the work folder.
    path = os.pathsep.join([before, PATH]) if before else PATH
    environment = {**os.environ, "PYTHONPATH": path, "HOME": str(log.parent)}
    environment["PYTHONSAFEPATH"] = "1"  # the present folder would come before ``before``
    command = [sys.executable, "-m", "peers.child", json.dumps(order)]
    with open(log, "ab") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        # Unbuffered: a buffer could swallow a second line. Then select would wait for a line that
        # was already read, while the contestant waits for an answer.
        process = subprocess.Popen(
            command, env=environment, start_new_session=True, bufsize=0, **pipes
        )
    wait_s = 0.0
    try:
        told = _listen(process, time.monotonic() + timeout_s)
        wait_s = END_S
        return told
    finally:
        _end(process, wait_s)


def _listen(process: "subprocess.Popen[bytes]", end: float) -> dict[str, Any]:
    watch = _Watch(process)
    while "failed" not in watch.told and watch.stage not in ("done", "made"):
        watch.hear()
        if time.monotonic() > end:
            return {"failed": f"took too long, last seen after {watch.stage!r}"}
    return watch.told


class _Watch:
    """A contestant's reports so far, and the memory that it takes."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process, self.start = process, time.monotonic()
        self.stage, self.told = "start", dict[str, Any]()
        self.torch_bytes = self.peak_bytes = 0

    def hear(self) -> None:
        """Read the next line. While none comes in the checked epoch, measure the memory instead."""
        assert self.process.stdout is not None
        if not select.select(
            [self.process.stdout], [], [], LOOK_S if self.stage == "imported" else 1.0
        )[0]:
            if self.stage == "imported":
                self.look()
            return
        line = self.process.stdout.readline()
        if not line:
            self.told["failed"] = f"its process ended ({self.process.wait()}) after {self.stage!r}"
            return
        facts = json.loads(line)
        self.stage = facts.pop("event")
        self.told.update(facts)
        if self.stage == "imported":
            self.told["imports_s"] = time.monotonic() - self.start
        elif self.stage in ("torch", "warm", "done"):
            self.pause()

    def look(self) -> int:
        """Return the memory beyond torch's own, and remember the peak."""
        now = tree_bytes(self.process.pid) - self.torch_bytes
        self.peak_bytes = max(self.peak_bytes, now)
        return now

    def pause(self) -> None:
        """Measure the memory while the contestant waits, then let it continue."""
        if self.stage == "torch":
            self.torch_bytes = tree_bytes(self.process.pid)
        else:
            self.told[f"{self.stage}_bytes"] = self.look()
            self.told["memory_bytes"] = self.peak_bytes
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


def _end(process: "subprocess.Popen[bytes]", wait_s: float) -> None:
    """Wait for the contestant to end, then kill whatever is left of its session."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(wait_s)
    for pid in session(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


def session(leader: int) -> list[int]:
    """Return the id of every process in the session of ``leader``."""
    pids: list[int] = []
    for entry in os.listdir("/proc"):
        try:
            if (
                entry.isdigit()
                and int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[3])
                == leader
            ):
                pids.append(int(entry))
        except OSError:
            continue
    return pids


def tree_bytes(leader: int) -> int:
    """Return the memory of a session: the sum of the processes' proportional set sizes.

    A page that several processes share counts once.
    """
    total = 0
    for pid in session(leader):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total
