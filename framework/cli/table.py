"""What a run says at its end: where the step time went, and where everything is."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED


def print_run(run_dir: Path, code: int, short: bool) -> None:
    """The table of one run, or one line of it for a job of a sweep."""
    console = Console(highlight=False)
    summary = _read(run_dir / "summary.json") if code in (0, EXIT_PREEMPTED, EXIT_INTERRUPTED) else None
    if summary and short:
        console.print(f"{_metrics(summary)}  {summary['records_per_s']:,.0f} records/s", soft_wrap=True)
    elif summary:
        console.print(_spans(summary))
        console.print(
            f"{summary['status']}: {summary['run_steps']} steps in {summary['wall_s']:.1f} s, {summary['records_per_s']:,.0f} records/s"
        )
        if summary["val"]:
            console.print(
                f"{_metrics(summary)}  (best {_metrics({'val': summary['best']}).removeprefix('val ')})", soft_wrap=True
            )
    if summary:
        console.print(f"run directory: {run_dir}", soft_wrap=True)


def _spans(summary: dict[str, Any]) -> Table:
    total_s = sum(summary["spans_s"].values()) or 1.0
    table = Table("span", title="where the step time went", title_justify="left")
    for name in ("share", "per step", "total"):
        table.add_column(name, justify="right")
    for name, seconds in summary["spans_s"].items():
        per_step_ms = 1e3 * seconds / max(1, summary["run_steps"])
        table.add_row(name, f"{100 * seconds / total_s:.1f} %", f"{per_step_ms:.3f} ms", f"{seconds:.2f} s")
    return table


def print_sweep(run_dirs: list[Path]) -> None:
    """A line per job: what was chosen for it that the others did not all choose, and how it went."""
    chosen = [_overrides(run_dir) for run_dir in run_dirs]
    keys = [key for key in dict.fromkeys(key for job in chosen for key in job) if len({job.get(key) for job in chosen}) > 1]
    table = Table("job", *keys, title="sweep", title_justify="left")
    for name in ("records/s", "waiting", "validation"):
        table.add_column(name, justify="right")
    for number, (run_dir, job) in enumerate(zip(run_dirs, chosen, strict=True)):
        table.add_row(str(number), *[job.get(key, "") for key in keys], *_figures(run_dir))
    console = Console(highlight=False)
    console.width = max(console.width, 110)  # without a terminal rich assumes 80 columns, and folds every row
    console.print(table)
    console.print(f"sweep directory: {run_dirs[0].parent}", soft_wrap=True)


def _overrides(run_dir: Path) -> dict[str, str]:
    words = (_read(run_dir / "run.json") or {}).get("overrides", [])
    return dict(word.split("=", 1) for word in words if "=" in word)


def _figures(run_dir: Path) -> tuple[str, str, str]:
    summary = _read(run_dir / "summary.json")
    if summary is None:
        return "", "", str((_read(run_dir / "exit.json") or {}).get("reason", "failed"))
    total_s = sum(summary["spans_s"].values()) or 1.0
    wait = f"{100 * summary['spans_s']['wait'] / total_s:.0f} %"
    return f"{summary['records_per_s']:,.0f}", wait, _metrics(summary)


def _metrics(summary: dict[str, Any]) -> str:
    return (
        "val " + "  ".join(f"{name} {value:.4f}" for name, value in summary["val"].items() if name != "step")
        if summary["val"]
        else ""
    )


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
