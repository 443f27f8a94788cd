"""The terminal: a live progress bar, and a line for every validation."""

import time
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from framework.contracts import Report, RunContext

REFRESH_S = 0.1  # a bar redrawn more often costs steps and shows no more


@final
class ConsoleSink:
    """Writes to standard error, so that standard output stays free. Without a terminal there are lines only."""

    def __init__(self, *, run: RunContext) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._run, self._drawn = run, 0.0
        columns = (TextColumn("epoch {task.fields[epoch]}"), BarColumn(), TextColumn("{task.completed}/{task.total} steps"))
        self._progress = Progress(
            *columns,
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
            console=self._console,
            transient=True,
            auto_refresh=False,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=run.total_steps, completed=run.start_step, epoch="", text="")
        self._progress.start()

    def write(self, report: Report) -> None:
        epoch = f"{report.epoch}/{self._run.epochs}"
        if report.split == "val":
            metrics = "  ".join(f"val {name} {value:.4f}" for name, value in report.means.items())
            self._console.print(f"epoch {epoch}  step {report.step}  {metrics}")
        elif time.monotonic() - self._drawn > REFRESH_S:
            self._drawn = time.monotonic()
            self._progress.update(self._task, completed=report.step, epoch=epoch, text=_short(report), refresh=True)

    def close(self) -> None:
        self._progress.stop()


def _short(report: Report) -> str:
    step_s = sum(report.spans_s.values()) or 1.0
    wait = 100 * report.spans_s.get("wait", 0.0) / step_s
    return f"loss {report.means['loss']:.4f}  {report.records_per_s:,.0f}/s  wait {wait:.0f} %"
