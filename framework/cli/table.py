"""What a run says at its end: where the step time went, and where everything is."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table


def print_run(run_dir: Path, short: bool) -> None:
    """The table of one run, or one line of it for a job of a sweep."""
    console = Console(highlight=False)
    summary = _read(run_dir / "summary.json")
    if summary and short:
        console.print(f"{_metrics(summary)}  {summary['records_per_s']:,.0f} records/s", soft_wrap=True)
    elif summary:
        console.print(_spans(summary))
        console.print(
            f"{summary['status']}: {summary['steps']} steps in {summary['wall_s']:.1f} s, {summary['records_per_s']:,.0f} records/s"
        )
        console.print(f"{_metrics(summary)}  (best {_metrics({'val': summary['best']}).removeprefix('val ')})")
    console.print(f"run directory: {run_dir}", soft_wrap=True)


def _spans(summary: dict[str, Any]) -> Table:
    total_s = sum(summary["spans_s"].values()) or 1.0
    table = Table("span", title="where the step time went", title_justify="left")
    for name in ("share", "per step", "total"):
        table.add_column(name, justify="right")
    for name, seconds in summary["spans_s"].items():
        per_step_ms = 1e3 * seconds / max(1, summary["steps"])
        table.add_row(name, f"{100 * seconds / total_s:.1f} %", f"{per_step_ms:.3f} ms", f"{seconds:.2f} s")
    return table


def print_sweep(run_dirs: list[Path]) -> None:
    """A line per job."""
    table = Table("job", "data", "loader", "parallel", "precision", title="sweep", title_justify="left")
    for name in ("records/s", "waiting", "validation"):
        table.add_column(name, justify="right")
    for run_dir in run_dirs:
        summary = _read(run_dir / "summary.json")
        if summary is None:
            table.add_row(run_dir.name, *[""] * 6, (_read(run_dir / "exit.json") or {}).get("reason", "failed"))
            continue
        total_s = sum(summary["spans_s"].values()) or 1.0
        wait = f"{100 * summary['spans_s']['wait'] / total_s:.0f} %"
        table.add_row(
            run_dir.name.split("-")[0], *summary["choices"].values(), f"{summary['records_per_s']:,.0f}", wait, _metrics(summary)
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(f"sweep directory: {run_dirs[0].parent}", soft_wrap=True)


def _metrics(summary: dict[str, Any]) -> str:
    return (
        "val " + "  ".join(f"{name} {value:.4f}" for name, value in summary["val"].items() if name != "step")
        if summary["val"]
        else ""
    )


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
