"""Runs one contestant in a process of its own and looks at it from outside: seconds, records per second, memory of the whole tree."""

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
PATH = os.pathsep.join(
    [str(HERE), str(HERE.parent)]
)  # the framework that is measured is the one beside us
END_S = (
    15.0  # for a contestant to end by itself: mosaicml-streaming takes its shared memory away then
)
LOOK_S = 0.05  # between two looks at the memory, in the warm-up epoch; nothing looks while laps are timed


def run(enter: str, work: Work, laps: int, log: Path, timeout_s: float) -> dict[str, Any]:
    """``rates`` (records per second of each lap), ``first_s``, ``imports_s``, ``memory_bytes`` beyond torch's own import, what the
    checked epoch found; or ``failed``: why not.
    """
    return _converse(
        {"call": enter, "make": False, "work": asdict(work), "laps": laps}, log, timeout_s
    )


def make(function: str, work: Work, log: Path, timeout_s: float) -> dict[str, Any]:
    """Have a contestant write its own format; ``failed``: why not."""
    return _converse({"call": function, "make": True, "work": asdict(work)}, log, timeout_s)


def _converse(order: dict[str, Any], log: Path, timeout_s: float) -> dict[str, Any]:
    # a library may remember things in the home directory (litdata does): they belong to the work folder
    environment = {**os.environ, "PYTHONPATH": PATH, "HOME": str(log.parent)}
    command = [sys.executable, "-m", "peers.child", json.dumps(order)]
    with open(log, "ab") as errors:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors}
        # unbuffered: select does not see a line that was read along with the one before it, and the contestant waits for an answer
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
    """What a contestant has said so far, and how much memory it took."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.process, self.start = process, time.monotonic()
        self.stage, self.told = "start", dict[str, Any]()
        self.torch_bytes = self.peak_bytes = 0

    def hear(self) -> None:
        """The next line, or in the warm-up epoch, while there is none, a look at the memory."""
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
        now = tree_bytes(self.process.pid) - self.torch_bytes
        self.peak_bytes = max(self.peak_bytes, now)
        return now

    def pause(self) -> None:
        """The contestant waits here."""
        if self.stage == "torch":
            self.torch_bytes = tree_bytes(self.process.pid)
        else:
            self.told[f"{self.stage}_bytes"] = self.look()
            self.told["memory_bytes"] = self.peak_bytes
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()


def _end(process: "subprocess.Popen[bytes]", wait_s: float) -> None:
    """The contestant and whatever it started, which share its session: by themselves, or else by force."""
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
    """Every process of the session that ``leader`` began."""
    found: list[int] = []
    for entry in os.listdir("/proc"):
        try:
            if (
                entry.isdigit()
                and int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[3])
                == leader
            ):
                found.append(int(entry))
        except OSError:
            continue
    return found


def tree_bytes(leader: int) -> int:
    """Proportional set size, summed: a page that several processes share counts once."""
    total = 0
    for pid in session(leader):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total
