"""A run's directory -> a Run, whatever state it is in: finished, failed, killed in the middle of a line, or years old."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.commands.report.json_values import (
    command_of,
    duration,
    facts_of,
    flat,
    load,
    mapping,
    number,
    numbers,
    positive,
    shown,
)
from framework.commands.report.recorded_run import RecordedRun, RecordedSpan, stacked
from framework.commands.report.run_metrics import Metrics, read_metrics
from framework.config.schema import FACTS
from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED

OF_A_RUN = (FACTS, "metrics.jsonl", "summary.json", "exit.json")
RESOURCES = ("stages_s", "queue", "usage")
FIGURES = ("steps", "epochs", "wall_s", "validate_s", "peak_rss_bytes", "peak_device_bytes")
NOT_ASKED = ("hydra.", "hydra/", "resume", "allow_targets")


def is_run(path: Path) -> bool:
    """Whether ``path`` is a run's directory."""
    return any((path / name).is_file() for name in OF_A_RUN)


def read_run(path: Path) -> RecordedRun:
    """What ``path`` holds; never fails."""
    facts, summary, ended = (
        load(path / FACTS),
        load(path / "summary.json"),
        load(path / "exit.json"),
    )
    config = flat(_newest_config(path))
    metrics = read_metrics(path / "metrics.jsonl", positive(config.get("batch_size")))
    status, reason = _status(ended, summary, metrics.last_step)
    spans, beside = stacked(_spans(summary, metrics))
    val = {name: value for name, value in numbers(summary.get("val")).items() if name != "step"}
    return RecordedRun(
        name=shown(path.resolve().name),
        place=shown(str(path)),
        status=status,
        reason=reason,
        choices=_choices(facts),
        config=config,
        facts=facts_of(facts),
        command=command_of(facts.get("command")),
        started=shown(facts.get("started", "")),
        records_per_s=_rate(summary, metrics),
        rates=metrics.rates,
        spans=spans,
        beside=beside,
        curves=metrics.curves,
        val=val or _newest(metrics),
        best=numbers(summary.get("best")),
        figures={
            "steps": metrics.last_step,
            **{name: f for name, f in numbers(summary).items() if name in FIGURES},
        },
        resources={
            name: f for key in RESOURCES for name, f in numbers(flat(summary.get(key), key)).items()
        },
        notes=_notes(path, summary, spans, metrics),
    )


def _newest_config(path: Path) -> dict[str, Any]:
    """Of a resumed run ``resolved.N.json``, with the greatest N."""
    numbered = {path / "resolved.json": 0}
    for found in path.glob("resolved.*.json"):
        digits = re.fullmatch(r"resolved\.(\d+)\.json", found.name)
        numbered |= {found: int(digits[1])} if digits else {}
    return load(max(numbered, key=lambda name: numbered[name]))


def _status(
    ended: Mapping[str, Any], summary: Mapping[str, Any], last_step: int
) -> tuple[str, str]:
    """What ``exit.json`` and ``summary.json`` say, unless the log is longer than the run they tell of: it goes on, or was killed."""
    code, reason = number(ended.get("code")), shown(ended.get("reason", ""))
    if code in (EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED):
        return "interrupted", reason
    if code:
        return "failed", reason
    if not summary:
        return "unfinished", "no end is recorded: it is running, or was killed"
    if last_step > (number(summary.get("steps")) or 0):
        return "unfinished", "no end is recorded since it was resumed: it is running, or was killed"
    return ("interrupted" if summary.get("status") == "interrupted" else "finished"), ""


def _spans(summary: Mapping[str, Any], metrics: Metrics) -> dict[str, RecordedSpan]:
    """From the summary, with quantiles; from an older one's sums; or from the log."""
    spans: dict[str, RecordedSpan] = {}
    for name, told in mapping(summary.get("spans")).items():
        block = mapping(told)
        mean_s = duration(block.get("mean_s"))
        if mean_s is not None:
            spans[shown(name)] = RecordedSpan(
                mean_s, duration(block.get("p50_s")), duration(block.get("p90_s"))
            )
    steps = positive(summary.get("run_steps"))
    if not spans and steps:
        totals = {
            name: duration(total_s) for name, total_s in mapping(summary.get("spans_s")).items()
        }
        spans = {
            shown(name): RecordedSpan(total_s / steps)
            for name, total_s in totals.items()
            if total_s is not None
        }
    return spans or metrics.spans


def _choices(facts: Mapping[str, Any]) -> dict[str, str]:
    """The overrides as typed, without those that say only where and how it runs."""
    words = [word.lstrip("+~") for word in _words(facts.get("overrides"))]
    pairs = (word.split("=", 1) for word in words if "=" in word and not word.startswith(NOT_ASKED))
    return {shown(key): shown(value) for key, value in pairs}


def _words(value: Any) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []


def _rate(summary: Mapping[str, Any], metrics: Metrics) -> float | None:
    """Of the whole run; where there is no summary, the median of its reports."""
    told = positive(summary.get("records_per_s"))
    if told is not None or not metrics.rates:
        return told
    return sorted(metrics.rates)[len(metrics.rates) // 2]


def _newest(metrics: Metrics) -> dict[str, float]:
    """The last validation in the log of a run without a summary."""
    return {
        name: float(c.values[-1])
        for (split, name), c in metrics.curves.items()
        if split == "val" and len(c.values)
    }


def _notes(
    path: Path, summary: Mapping[str, Any], spans: Mapping[str, RecordedSpan], metrics: Metrics
) -> tuple[str, ...]:
    notes = [shown(note) for note in _words(summary.get("notes"))]
    if summary and spans and all(span.p50_s is None for span in spans.values()):
        notes.append("older format: means only, no p50 and p90 of the spans")
    if metrics.num_bad:
        notes.append(f"{metrics.num_bad:,} lines of metrics.jsonl are not whole and left out")
    if not (path / "metrics.jsonl").is_file():
        notes.append("no metrics.jsonl: no curves")
    broken = [
        name
        for name in (FACTS, "summary.json", "exit.json")
        if (path / name).is_file() and not load(path / name)
    ]
    return (*notes, *(f"{name} cannot be read" for name in broken))
