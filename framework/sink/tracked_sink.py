"""What a run tells a tracking server: how it begins, its reports, its files, and how it ends."""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from framework.contracts.training import Report, RunContext
from framework.sink.outbox import Delivery, Event, Outbox, Tracker
from framework.sink.report_values import (
    learned_values,
    measured_values,
    write_arrays,
    write_pictures,
)
from framework.system.run_dir import configurations, flat, newest_config, read_object

CHECKPOINTS = ("checkpoints/best.pt", "checkpoints/last.pt")


class TrackedSink:
    """Writes the events of a run to an outbox, from which a thread sends them to a server.

    The run never waits for the server. What cannot be sent stays in ``run_dir/outbox``.

    Args:
        name: The name of the sink.
        tracker: Sends the events.
        num_images: How many records of the sample batch are drawn.
        checkpoints: Whether the weights are sent when the run ends.
        every_s: Seconds between two batches of reports.
        close_s: Seconds that the end of the run may wait for the server.
        run: The run.
    """

    def __init__(
        self,
        name: str,
        tracker: Tracker,
        num_images: int,
        checkpoints: bool,
        every_s: float,
        close_s: float,
        run: RunContext,
    ) -> None:
        self._outbox = outbox = Outbox(run.run_dir, name, run.start_step)
        tracker.prepare(outbox, checkpoints)
        self._delivery = Delivery(outbox, tracker, name, every_s, close_s, run.say)
        self._run = run
        self._checkpoints = checkpoints
        self._last_step = run.start_step
        self._is_open = True
        config = newest_config(run.run_dir)
        outbox.append({"begin": config.name, "step": run.start_step, "time_ms": now_ms()})
        pictures: list[Path] = []
        if not run.start_step:
            pictures = write_pictures(run.sample, num_images, run.run_dir / "pictures")
        self._add_files(configurations(run.run_dir), pictures, run.start_step)

    def _add_files(self, names: list[str], pictures: list[Path], step: int) -> None:
        drawn = [str(path.relative_to(self._run.run_dir)) for path in pictures]
        self._outbox.append({"files": names + drawn, "step": step})

    def write(self, report: Report) -> None:
        self._last_step = report.step
        self._outbox.append(
            {
                "report": report.split,
                "step": report.step,
                "time_ms": now_ms(),
                "learned": learned_values(report),
                "measured": measured_values(report),
            }
        )
        if report.arrays:
            # A folder per step: pictures are sent later, or sent again.
            folder = self._run.run_dir / "pictures" / f"step-{report.step:08d}"
            self._add_files([], write_arrays(report.arrays, report.split, folder), report.step)

    def flush(self) -> None:
        self._outbox.sync()

    def close(self) -> None:
        """Note how the run ended, and let the delivery send the rest."""
        if not self._is_open:
            return
        self._is_open = False
        status = "KILLED"
        if sys.exception() is not None:
            status = "FAILED"
        elif self._last_step >= self._run.total_steps or self._run.has_ended():
            status = "FINISHED"
        try:
            for event in end_events(status, self._last_step, self._checkpoints):
                self._outbox.append(event)
        finally:
            self._outbox.close()
            self._delivery.close()


def end_events(status: str, step: int, checkpoints: bool) -> list[Event]:
    """Return the last events of a run. ``status`` is FINISHED, KILLED or FAILED."""
    end = {"end": status, "step": step, "time_ms": now_ms()}
    if not checkpoints:
        return [end]
    return [{"files": list(CHECKPOINTS), "step": step}, end]


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def read_config(path: Path | None) -> dict[str, str]:
    """Return the leaves of a configuration as texts by dotted names; {} if it cannot be read."""
    leaves = flat(read_object(path)) if path else {}
    return {n: leaf if isinstance(leaf, str) else json.dumps(leaf) for n, leaf in leaves.items()}


def inside(run_dir: Path, name: object) -> Path | None:
    """Return the file ``name`` of a run directory; None if there is none.

    A name that leads out of the directory, also by a link, is none: a run directory may come from
    somebody else, and its files are sent.
    """
    path = run_dir / str(name)
    with suppress(OSError, ValueError):
        is_ours = path.resolve().is_relative_to(run_dir.resolve())
        if is_ours and path.is_file():
            return path
    return None
