"""The terminal: a live progress bar, and a line for every validation."""

import time
from typing import final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from framework.contracts.span import IDLE, shares
from framework.contracts.training import Report, RunContext

REFRESH_S = 0.1  # a bar redrawn more often costs steps and shows no more
BAR, BESIDE = 16, 48  # characters: of the bar, and of all that is drawn beside the text


@final
class ConsoleSink:
    """Writes to standard error, so that standard output stays free. Without a terminal there are lines only."""

    def __init__(self, *, run: RunContext) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._run, self._drawn = run, 0.0
        columns = (
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(BAR),
            TextColumn("{task.completed}/{task.total} steps"),
        )
        self._progress = Progress(
            *columns,
            TextColumn("{task.fields[text]}"),
            console=self._console,
            transient=True,
            auto_refresh=False,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task(
            "", total=run.total_steps, completed=run.start_step, epoch="", text=""
        )
        self._progress.start()

    def write(self, report: Report) -> None:
        epoch = f"{report.epoch}/{self._run.epochs}"
        if report.split == "val":
            metrics = "  ".join(f"val {name} {value:.4f}" for name, value in report.means.items())
            self._console.print(f"epoch {epoch}  step {report.step}  {metrics}")
        elif time.monotonic() - self._drawn > REFRESH_S:
            self._drawn = time.monotonic()
            text = _short(report, self._console.width - BESIDE)
            self._progress.update(
                self._task, completed=report.step, epoch=epoch, text=text, refresh=True
            )

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self._progress.stop()


def _short(report: Report, width: int) -> str:
    """As much as fits, the most telling first."""
    text = f"loss {report.means['loss']:.4f}"
    for part in (f"{report.records_per_s:,.0f}/s", *_where(report), *_left(report), *_used(report)):
        if len(text) + 2 + len(part) > width:
            break
        text += f"  {part}"
    return text


def _where(report: Report) -> list[str]:
    """The share of the time that more data could have been worth."""
    found = shares(report.spans)
    name = IDLE if IDLE in found else "wait"
    return [f"{name} {100 * found[name]:.0f} %"] if name in found else []


def _left(report: Report) -> list[str]:
    found = [] if report.left_s is None else [f"left {_duration(report.left_s)}"]
    return found if report.epoch_left is None else [*found, f"{report.epoch_left:,} left of epoch"]


def _used(report: Report) -> list[str]:
    usage = report.usage
    memory = [
        f"{usage[name] / 2**30:.1f} GiB"
        for name in ("peak_device_bytes", "peak_rss_bytes")
        if name in usage
    ][:1]
    busy = [f"gpu {100 * usage['gpu_busy_share']:.0f} %"] if "gpu_busy_share" in usage else []
    return [
        *memory,
        *busy,
        *(
            [f"workers {usage['workers_cpu_cores']:.1f} cores"]
            if "workers_cpu_cores" in usage
            else []
        ),
    ]


def _duration(seconds: float) -> str:
    """Hours, minutes, seconds, as in 1:02:03 and 2:03."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
