"""Read a run from its directory: finished, failed, killed in the middle of a line, or years old."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median_high
from typing import Any

from framework.commands.report.recorded_run import (
    RecordedRecord,
    RecordedRun,
    RecordedSpan,
    is_validation,
    named_by_set,
    stacked,
)
from framework.commands.report.run_metrics import Metrics, read_metrics
from framework.contracts.rank_spans import LateRank, RankReport, RankSpan
from framework.contracts.slow_records import slow_words
from framework.errors import EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED
from framework.system.json_values import (
    command_of,
    duration,
    facts_of,
    flat,
    mapping,
    number,
    numbers,
    positive,
    shown,
    words,
)
from framework.system.run_dir import (
    ENDED,
    FACTS,
    OBJECTS,
    REPORTS,
    SUMMARY,
    check_entry,
    is_file,
    newest_config,
    read_object,
)

RESOURCES = ("stages_s", "queue", "usage")
FIGURES = ("steps", "epochs", "wall_s", "validate_s", "peak_rss_bytes", "peak_device_bytes")
NOT_CHOICES = ("hydra.", "hydra/", "resume", "allow_targets")


def read_run(path: Path) -> RecordedRun:
    """Read the directory of a run. Missing and damaged files leave defaults and a note.

    CheckpointError K126 for a directory with links.
    """
    check_entry(path)
    facts = read_object(path / FACTS)
    summary = read_object(path / SUMMARY)
    config = flat(read_object(newest_config(path)))
    metrics = read_metrics(path / REPORTS, positive(config.get("batch_size")))
    status, reason = _status(read_object(path / ENDED), summary, metrics.last_step)
    spans, beside = stacked(_spans(summary, metrics))
    known = numbers(summary)
    rate_of_log = None
    if metrics.rates:
        rate_of_log = median_high(metrics.rates)
    resources: dict[str, float] = {}
    for key in RESOURCES:
        resources.update(numbers(flat(summary.get(key), f"{key}.")))
    return RecordedRun(
        name=shown(path.resolve().name),
        place=shown(str(path)),
        status=status,
        reason=reason,
        choices=typed_choices(facts),
        config=config,
        facts=facts_of(facts),
        command=command_of(facts.get("command")),
        started=shown(facts.get("started", "")),
        records_per_s=positive(summary.get("records_per_s")) or rate_of_log,
        rates=metrics.rates,
        spans=spans,
        beside=beside,
        curves=metrics.curves,
        val=_validation(summary, metrics),
        best=numbers(summary.get("best")),
        figures={"steps": metrics.last_step, **{n: known[n] for n in FIGURES if n in known}},
        resources=resources,
        slow=_slow(mapping(summary.get("slow_records")) or metrics.slow),
        notes=_notes(path, summary, metrics),
        ranks=_ranks(mapping(summary.get("ranks"))),
    )


def _status(
    ended: Mapping[str, Any], summary: Mapping[str, Any], last_step: int
) -> tuple[str, str]:
    """Return status and reason. A log beyond the recorded end means that the run was resumed."""
    code = number(ended.get("code"))
    reason = shown(ended.get("reason", ""))
    if code in (EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED):
        return "interrupted", reason
    if code:
        return "failed", reason
    if not summary:
        return "unfinished", "no end is recorded: it is running, or was killed"
    if last_step > (number(summary.get("steps")) or 0):
        return "unfinished", "no end is recorded since it was resumed: it is running, or was killed"
    if summary.get("status") == "interrupted":
        return "interrupted", ""
    return "finished", shown(summary.get("reason", ""))


def _spans(summary: Mapping[str, Any], metrics: Metrics) -> dict[str, RecordedSpan]:
    """Return the spans with quantiles; without a summary the means of the log."""
    spans: dict[str, RecordedSpan] = {}
    for name, value in mapping(summary.get("spans")).items():
        block = mapping(value)
        mean_s = duration(block.get("mean_s"))
        if mean_s is not None:
            quantiles = duration(block.get("p50_s")), duration(block.get("p90_s"))
            spans[shown(name)] = RecordedSpan(mean_s, *quantiles)
    return spans or metrics.spans


def _slow(block: Mapping[str, Any]) -> tuple[RecordedRecord, ...]:
    """Return the records of a block as ``contracts.slow_records`` makes it."""
    listed = block.get("records")
    records: list[RecordedRecord] = []
    for record in map(mapping, listed if isinstance(listed, list) else []):
        mean_s = duration(record.get("mean_s"))
        if mean_s is not None:
            reads = number(record.get("num_reads")) or 0.0
            size_bytes = positive(record.get("size_bytes"))
            name = shown(record.get("name", ""))
            rank = number(record.get("rank"))
            records.append(RecordedRecord(name, mean_s, reads, size_bytes, rank))
    return tuple(records)


def _ranks(recorded: Mapping[str, Any]) -> RankReport | None:
    """Return what the ranks measured; None if the run has one, or if a figure is damaged."""
    spans: dict[str, RankSpan] = {}
    for name, value in mapping(recorded.get("spans")).items():
        figures = numbers(value, duration)
        if {*RankSpan._fields} != {*figures}:
            return None
        rank = int(figures.pop("rank"))
        spans[shown(name)] = RankSpan(rank=rank, **figures)
    late = None
    block = mapping(recorded.get("late"))
    figures = numbers(block, duration)
    if {*LateRank._fields} == {*figures, "span"}:
        rank = int(figures.pop("rank"))
        late = LateRank(rank=rank, span=shown(block.get("span")), **figures)
    count = positive(recorded.get("num"))
    return RankReport(int(count), spans, late) if count and spans else None


def typed_choices(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the overrides as typed, without those that only say where and how the run starts."""
    choices: dict[str, str] = {}
    for word in words(facts.get("overrides")):
        key, sign, value = word.lstrip("+~").partition("=")
        if sign and not word.lstrip("+~").startswith(NOT_CHOICES):
            choices[shown(key)] = shown(value)
    return choices


def _validation(summary: Mapping[str, Any], metrics: Metrics) -> dict[str, float]:
    """Return the last validation; without a summary that of the log."""
    values = numbers(summary.get("val"))
    values.pop("step", None)
    if values:
        return values
    curves = [(key, c.values) for key, c in metrics.curves.items() if is_validation(key[0])]
    return {named_by_set(*key): float(points[-1]) for key, points in curves}


def _notes(path: Path, summary: Mapping[str, Any], metrics: Metrics) -> tuple[str, ...]:
    notes = list(map(shown, words(summary.get("notes"))))
    with suppress(KeyError, TypeError, ValueError):  # of a damaged summary
        if line := slow_words(summary["slow_records"], summary["train_s"]):
            notes.append(shown(line))
    tuned = mapping(summary.get("tuning")).get("decisions")
    decisions = map(mapping, tuned if isinstance(tuned, list) else [])
    notes += [f"after {shown(own.get('at_s'))} s: {shown(own.get('text'))}" for own in decisions]
    if metrics.num_bad:
        notes.append(f"{metrics.num_bad:,} lines of metrics.jsonl are damaged and left out")
    if not is_file(path / REPORTS):
        notes.append("no metrics.jsonl: no curves")
    return (*notes, *(f"{name} cannot be read" for name in _broken_files(path)))


def _broken_files(path: Path) -> list[str]:
    paths = [path / name for name in OBJECTS]
    return [path.name for path in paths if os.path.lexists(path) and not read_object(path)]
