"""The terminal: a live progress bar, and one line per validation."""

import time
from typing import final

from rich.progress import BarColumn, Progress, TextColumn

from framework.contracts.span import IDLE, shares
from framework.contracts.training import Report, RunContext, Sink
from framework.system.safe_text import SafeConsole

REFRESH_S = 0.1  # more often would slow the steps and show no more
BAR = 16  # characters of the bar
RESERVED = 48  # characters of all that is drawn next to the text


@final
class ConsoleSink(Sink):
    """Writes to standard error. Without a terminal it writes only the lines."""

    def __init__(self, *, run: RunContext) -> None:
        self._console = SafeConsole(stderr=True)
        self._run = run
        self._drawn_at = 0.0
        self._progress = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(BAR),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("{task.fields[text]}", markup=False),
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
        if report.split != "train":
            means = report.means.items()
            metrics = "  ".join(f"{report.split} {name} {value:.4f}" for name, value in means)
            line = f"epoch {epoch}  step {report.step}  {metrics}"
            self._console.print(line, soft_wrap=True)  # a reader of a pipe needs it whole
        elif time.monotonic() - self._drawn_at > REFRESH_S:
            self._drawn_at = time.monotonic()
            # The parts that fit, the most important ones first.
            parts = [f"{report.records_per_s:,.0f}/s"]
            known = shares(report.spans)
            for name in (IDLE, "wait"):  # the share of the time that faster data could save
                if name in known:
                    parts.append(f"{name} {100 * known[name]:.0f} %")
                    break
            if report.ranks is not None and report.ranks.late is not None:
                late = report.ranks.late
                parts.append(f"rank {late.rank} late {1e3 * late.late_s:.0f} ms ({late.span})")
            parts += [f"{name} {100 * share:.0f} %" for name, share in report.content.items()]
            if report.left_s is not None:
                minutes, seconds = divmod(round(report.left_s), 60)
                hours, minutes = divmod(minutes, 60)
                time_left = f"{minutes}:{seconds:02}"
                if hours:
                    time_left = f"{hours}:{minutes:02}:{seconds:02}"
                parts.append(f"left {time_left}")
            if report.epoch_left is not None:
                parts.append(f"{report.epoch_left:,} left of epoch")
            usage = report.usage
            peak = usage.get("peak_device_bytes", usage.get("peak_rss_bytes"))
            if peak is not None:
                parts.append(f"{peak / 2**30:.1f} GiB")
            if "gpu_busy_share" in usage:
                parts.append(f"gpu {100 * usage['gpu_busy_share']:.0f} %")
            if "workers_cpu_cores" in usage:
                parts.append(f"workers {usage['workers_cpu_cores']:.1f} cores")
            text = f"loss {report.means['loss']:.4f}"
            for part in parts:
                if len(text) + 2 + len(part) > self._console.width - RESERVED:
                    break
                text += f"  {part}"
            self._progress.update(
                self._task, completed=report.step, epoch=epoch, text=text, refresh=True
            )

    def close(self) -> None:
        self._progress.stop()
