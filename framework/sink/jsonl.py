"""metrics.jsonl: a line per report, for tools. Numbers are printed so that reading them back gives the same float64."""

import json
import os
from pathlib import Path
from typing import final

from framework.contracts.training import Report, RunContext


@final
class JsonlSink:
    """Appends to ``run_dir/metrics.jsonl``. In a resumed run, lines after the step it starts from are dropped first."""

    def __init__(self, *, run: RunContext) -> None:
        path = run.run_dir / "metrics.jsonl"
        _truncate(path, run.start_step)
        self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  # a line is on its way as soon as it is whole

    def write(self, report: Report) -> None:
        line = {
            "step": report.step,
            "epoch": report.epoch,
            "split": report.split,
            **report.means,
            "lr": report.learning_rate,
            "records_per_s": report.records_per_s,
            "epoch_left": report.epoch_left,
            "left_s": report.left_s,
            **_spans(report),
            **{
                key: value
                for key, value in (("stages_s", report.stages_s), ("usage", report.usage))
                if value
            },
            **({"skipped": report.skipped} if report.skipped else {}),
        }
        if report.ready is not None:
            line["ready"] = report.ready
        self._file.write(json.dumps(line) + "\n")

    def flush(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _spans(report: Report) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, span in report.spans.items():
        found |= {
            f"{name}_s": span.mean_s,
            f"{name}_p50_s": span.p50_s,
            f"{name}_p90_s": span.p90_s,
        }
    return found


def _truncate(path: Path, last_step: int) -> None:
    """Cut the file off after the last line of a step that is not void: at once, so that a kill leaves all lines or the good ones."""
    if not path.exists():
        return
    length, ends = 0, True
    with open(path, "rb+") as file:
        for line in file:
            if _step(line) > last_step:
                break
            length, ends = length + len(line), line.endswith(b"\n")
        file.truncate(length)
        if not ends:
            file.seek(length)
            file.write(b"\n")


def _step(line: bytes) -> float:
    try:
        return json.loads(line)["step"]
    except (ValueError, KeyError, TypeError):
        return float("inf")
