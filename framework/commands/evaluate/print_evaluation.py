"""Print what an evaluation result, as a run prints its end."""

import json
from pathlib import Path
from typing import Any

from rich.table import Table

from framework.cli.end_table import spans_table
from framework.commands.evaluate.write_evaluation import RESULT
from framework.system.safe_console import SafeConsole

MOST_CLASSES = 20  # in the table; of more, those with the lowest f1


def print_evaluation(output: Path) -> None:
    """Print the results in a folder: where the time went, the classes, the means, the files."""
    summary: dict[str, Any] = json.loads((output / RESULT).read_text(encoding="utf-8"))
    console = SafeConsole()
    for name, result in summary["sets"].items():
        if result["spans"]:
            console.print(spans_table(result["spans"]))
        if "classes" in result:
            console.print(_classes_table(result["classes"]))
        speed = f"{result['wall_s']:.1f} s, {result['records_per_s']:,.0f} records/s"
        data = result["data"]
        evaluated = f"evaluated: {result['records']} records of {data} in {speed}"
        console.print(evaluated, soft_wrap=True)
        means = "  ".join(f"{key} {value:.4f}" for key, value in result["means"].items())
        console.print(f"{name} {means}", soft_wrap=True)
    files = ", ".join([RESULT, *summary["files"]])
    console.print(f"weights: {summary['weights_file']}", soft_wrap=True)
    console.print(f"results: {output} ({files})", soft_wrap=True)


def _classes_table(classes: list[dict[str, Any]]) -> Table:
    """Return a row per class: all, or those that are guessed worst."""
    title = "classes"
    shown = classes
    if len(classes) > MOST_CLASSES:
        title = f"the {MOST_CLASSES} of {len(classes)} classes with the lowest f1"
        shown = sorted(classes, key=lambda row: (row["f1"] is None, row["f1"] or 0.0))
        shown = shown[:MOST_CLASSES]
    table = Table("class", title=title, title_justify="left")
    for name in ("count", "precision", "recall", "f1", "iou"):
        table.add_column(name, justify="right")
    for row in shown:
        figures = (row[name] for name in ("precision", "recall", "f1", "iou"))
        cells = ("" if value is None else f"{value:.4f}" for value in figures)
        table.add_row(row["name"], str(row["count"]), *cells)
    return table
