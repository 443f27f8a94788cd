"""metrics.jsonl: one line per report, for tools. Floats survive writing and reading exactly."""

import json
import math
import os
from contextlib import suppress
from typing import Any, final

import torch

from framework.contracts.training import Report, RunContext
from framework.system.run_dir import REPORTS, parsed, redacted


@final
class JsonlSink:
    """Appends to ``run_dir/metrics.jsonl``. A resumed run drops the lines after its step."""

    def __init__(self, *, run: RunContext) -> None:
        path = run.run_dir / REPORTS
        length = 0  # of the whole lines up to the step that the run starts from
        with suppress(FileNotFoundError), open(path, "rb+") as file:
            for line in file:
                step = parsed(line).get("step", math.inf)
                if not line.endswith(b"\n") or step > run.start_step:
                    break
                length += len(line)
            file.truncate(length)
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
            line[f"{name}_p50_s"] = span.quantile_s(0.5)
            line[f"{name}_p90_s"] = span.quantile_s(0.9)
        for name in ("stages_s", "content", "usage", "slow_records", "tuning", "skipped", "rates"):
            if value := getattr(report, name):
                line[name] = value
        if report.ranks is not None:
            line["ranks"] = report.ranks.as_dict()
        if report.ready is not None:
            line["ready"] = report.ready
        for name, array in report.arrays.items():
            whole = array.long()  # counts are whole numbers
            shown = whole if torch.equal(whole.to(array.dtype), array) else array
            line.setdefault("arrays", {})[name] = shown.tolist()
        self._file.write(json.dumps(redacted(line)) + "\n")

    def flush(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()
