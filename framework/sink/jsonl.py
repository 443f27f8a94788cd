"""metrics.jsonl: one line per report, for tools. Floats survive writing and reading exactly."""

import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from torch import Tensor

from framework.contracts.training import Report, RunContext
from framework.system.run_dir import REPORTS, parsed, redacted


@final
class JsonlSink:
    """Appends to ``run_dir/metrics.jsonl``.

    A resumed run first drops the lines after the step that it starts from.
    """

    def __init__(self, *, run: RunContext) -> None:
        path = run.run_dir / REPORTS
        _truncate(path, run.start_step)
        # Buffered by the line, so that readers see whole lines at once.
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115

    def write(self, report: Report) -> None:
        line: dict[str, Any] = {
            "step": report.step,
            "epoch": report.epoch,
            "split": report.split,
            **report.means,
            "lr": report.learning_rate,
            "records_per_s": report.records_per_s,
            "epoch_left": report.epoch_left,
            "left_s": report.left_s,
        }
        for name, span in report.spans.items():
            line[f"{name}_s"] = span.mean_s
            line[f"{name}_p50_s"] = span.p50_s
            line[f"{name}_p90_s"] = span.p90_s
        measured = {
            "stages_s": report.stages_s,
            "content": report.content,
            "usage": report.usage,
            "slow_records": report.slow_records,
            "tuning": report.tuning,
            "skipped": report.skipped,
        }
        line |= {name: value for name, value in measured.items() if value}
        if report.ranks is not None:
            line["ranks"] = report.ranks.as_dict()
        if report.ready is not None:
            line["ready"] = report.ready
        if report.arrays:
            line["arrays"] = {name: _nested(array) for name, array in report.arrays.items()}
        self._file.write(json.dumps(redacted(line)) + "\n")

    def flush(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _nested(array: Tensor) -> list[Any]:
    """Return an array as nested lists; counts are whole numbers."""
    whole = array.long()
    return (whole if bool((whole == array).all()) else array).tolist()


def _truncate(path: Path, last_step: int) -> None:
    """Cut off, at once, what follows the last whole line not later than ``last_step``."""
    length = 0
    with suppress(FileNotFoundError), open(path, "rb+") as file:
        for line in file:
            if not line.endswith(b"\n") or parsed(line).get("step", math.inf) > last_step:
                break
            length += len(line)
        file.truncate(length)
