"""Write what an evaluation result: ``evaluation.json``, a picture, and a page."""

import os
import sys
from pathlib import Path
from typing import Any

from framework.commands.evaluate.evaluation import EvaluationJob, SetResult, evaluate_run
from framework.config.saved_run import SavedRun
from framework.errors import ResourceError, say
from framework.system.durable import write_json, write_text
from framework.system.extras import needed
from framework.system.redaction import redacted

RESULT = "evaluation.json"


def write_evaluation(job: EvaluationJob, allowed: tuple[str, ...], output: Path) -> None:
    """Evaluate one rank's share. Rank 0 writes the results of all ranks into ``output``."""
    draws = _draws()
    parts: list[Any] = []

    def show(run: SavedRun, name: str, result: SetResult) -> None:
        if draws and result.worst:
            from framework.commands.evaluate.worst_page import shown_set  # noqa: PLC0415  # needs jinja2

            parts.append(shown_set(run, name, result))

    summary = evaluate_run(job, allowed, _say, show)
    if summary is None:  # rank 0 writes
        return
    summary["files"] = []
    for name, result in summary["sets"].items():
        if draws and "confusion" in result:
            from framework.commands.evaluate.confusion_picture import write_confusion  # noqa: PLC0415  # needs matplotlib

            picture = output / f"confusion{name.removeprefix('val')}.png"
            names = [figures["name"] for figures in result["classes"]]
            write_confusion(picture, result["confusion"], names)
            summary["files"].append(picture.name)
    if parts:
        from framework.commands.evaluate.worst_page import worst_page  # noqa: PLC0415

        page = worst_page(parts, job.run, job.weights)
        write_text(output / "worst.html", redacted(page))
        summary["files"].append("worst.html")
    write_json(output / RESULT, redacted(summary))


def _say(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        say(text, sys.stderr)


def _draws() -> bool:
    """Return whether pictures can be drawn. The figures need no extra."""
    try:
        needed("matplotlib", "report")
        needed("jinja2", "report")
    except ResourceError as error:
        _say(f"note: no pictures and no page: {error.args[1]} {error.args[2]}; {error.args[3]}")
        return False
    return True
