"""Run directories and bench files as Paceline leaves them, of chosen content."""

import json
import math
from html.parser import HTMLParser
from pathlib import Path

from framework.commands.report import recorded_runs, report
from framework.commands.report.charts import Chart, draw_charts
from framework.system.run_dir import write_object

SPANS_S = {"wait": 0.4e-3, "copy": 0.2e-3, "forward": 2.5e-3, "backward": 4.4e-3}
SPANS_S |= {"optimizer": 0.5e-3, "report": 0.1e-3}
MACHINE = {"platform": "Linux", "processor": "a processor", "num_cores": 2}
MACHINE |= {"memory_bytes": 2**34, "gpus": []}


def lines_of(num_steps: int = 40, every: int = 4, slow: float = 1.0) -> list[dict]:
    """Return lines of metrics.jsonl: training reports, and a validation every 20 steps."""
    lines: list[dict] = []
    spans = {f"{name}_s": seconds * slow for name, seconds in SPANS_S.items()}
    for step in range(every, num_steps + 1, every):
        loss = 2.3 * math.exp(-step / 20)
        rates = {"lr": 0.1, "records_per_s": 128 / (8.1e-3 * slow) * (1 + 0.02 * math.sin(step))}
        where = {"step": step, "epoch": 1 + (step - 1) // 20}
        means = {"loss": loss, "accuracy": 1 - loss / 3}
        lines.append({**where, "split": "train", **means, **rates, **spans})
        if step % 20 == 0:
            means = {"loss": loss + 0.1, "accuracy": 1 - loss / 2.9}
            lines.append({**where, "split": "val", **means, **rates})
    return lines


def line_of(step: int, split: str = "train", loss: float = 1.0, **more) -> dict:
    """Return a line of metrics.jsonl with few figures."""
    return {"step": step, "split": split, "loss": loss, **more, "lr": 1, "wait_s": 0.1}


def make_run(
    path: Path,
    overrides: tuple[str, ...] = (),
    *,
    config: dict | None = None,
    lines: list[dict] | None = None,
    code: int | None = 0,
    reason: str = "finished",
    slow: float = 1.0,
    machine: dict | None = None,
    notes: tuple[str, ...] = (),
) -> Path:
    """Write a run's directory: no end without a ``code``, no summary with one, ``slow`` times."""
    path.mkdir(parents=True)
    lines = lines_of(slow=slow) if lines is None else lines
    facts = {
        "command": ["paceline", "train", *overrides],
        "overrides": list(overrides),
        "started": "2026-11-21T09:00:00+0000",
        "versions": {"python": "3.11", "paceline": "0.1.0"},
        "git": "abc",
        "machine": machine or MACHINE,
    }
    write_object(path / "run.json", facts)
    options = {"batch_size": 128, **dict(word.split("=", 1) for word in overrides)}
    write_object(path / "resolved.json", {**options, **(config or {})})
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if code is not None:
        write_object(path / "exit.json", {"code": code, "reason": reason})
    if code == 0:
        write_object(path / "summary.json", summary_of(lines, slow, notes))
    return path


def summary_of(lines: list[dict], slow: float, notes: tuple[str, ...]) -> dict:
    """Return the content of a run's ``summary.json``."""
    steps = max((line["step"] for line in lines), default=0)
    val = next((line for line in reversed(lines) if line["split"] == "val"), {})
    means = {name: val[name] for name in ("loss", "accuracy") if name in val}
    each = {
        name: {"mean_s": s * slow, "p50_s": s * slow * 0.9, "p90_s": s * slow * 1.4}
        for name, s in SPANS_S.items()
    }
    course = {"status": "finished", "steps": steps, "run_steps": steps, "epochs": 2}
    speed = {"wall_s": 1.5 * slow, "records_per_s": 128 / (8.1e-3 * slow), "validate_s": 0.1}
    known = {"val": means, "best": {**means, "step": steps}, "notes": list(notes), "spans": each}
    use = {"stages_s": {"read": 0.4, "decode": 0.9}, "usage": {"cpu_share": 0.8}}
    return {**course, **speed, **known, **use, "peak_rss_bytes": 5 * 2**28}


def make_bench(
    path: Path, lines: list[dict], cells: list[dict] | None = None, what: str = "train"
) -> Path:
    """Write a bench file of ``lines`` below a header, which names ``cells`` if they are given."""
    command = ["paceline", "bench", f"what={what}"]
    header = {"bench": 1, "machine": MACHINE, "command": command, "what": what}
    header |= {"cells": cells} if cells else {}
    path.write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    return path


def cell(rate: float, repeat: int = 0, **choice: str) -> dict:
    """Return one repeat of one cell."""
    windows = [rate * (1 + 0.01 * number) for number in range(-3, 5)]
    measured = {"windows": windows, "records_per_s": rate, "spans_s": SPANS_S}
    return {"cell": choice, "repeat": repeat, **measured}


def drawn(paths: list[Path], png: bool = False) -> dict[str, Chart]:
    """Return the charts of these runs by name."""
    runs = report.labeled([recorded_runs.read_run(path) for path in paths])
    charts = draw_charts(runs, recorded_runs.relative_times(runs, "first"), png)
    return {chart.name: chart for chart in charts}


def make_sweep(folder: Path, count: int = 3) -> list[Path]:
    """Write runs that differ in seeds and speed, not in what they learned. Return their paths."""
    return [make_run(folder / str(n), (f"seed={n}",), slow=1 + n) for n in range(count)]


class Seen(HTMLParser):
    """Every tag with its attributes; tags left open; the text outside of scripts and styles."""

    VOID = ("meta", "br", "path", "use", "rect")

    def __init__(self, html):
        super().__init__()
        self.found, self.open, self.wrong, self.text, self.scripts = [], [], [], "", []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if tag not in self.VOID and (not self.open or self.open.pop() != tag):
            self.wrong.append(tag)

    def handle_data(self, data):
        if self.open[-1:] == ["script"]:
            self.scripts.append(data)
        elif self.open[-1:] != ["style"]:
            self.text += data
