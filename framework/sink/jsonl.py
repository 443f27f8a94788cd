"""metrics.jsonl: a line per report, for tools. Numbers are printed so that reading them back gives the same float64."""

import json
from pathlib import Path
from typing import final

from framework.contracts import Report, RunContext


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
            **{name: value for name, value in (("stages_s", report.stages_s), ("usage", report.usage)) if value},
        }
        if report.ready is not None:
            line["ready"] = report.ready
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        self._file.close()


def _spans(report: Report) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, span in report.spans.items():
        found |= {f"{name}_s": span.mean_s, f"{name}_p50_s": span.p50_s, f"{name}_p90_s": span.p90_s}
    return found


def _truncate(path: Path, last_step: int) -> None:
    if not path.exists():
        return
    kept = [line for line in path.read_text(encoding="utf-8").splitlines() if _step(line) <= last_step]
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:  # the last line of a run that was killed while writing it
        return float("inf")
