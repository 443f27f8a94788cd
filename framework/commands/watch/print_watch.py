"""Print what was seen of a script: the headline, the spans, the advice and the waiting calls."""

import os
from dataclasses import asdict
from typing import Any

from framework.cli.print_table import print_table
from framework.commands.diagnose.print_diagnosis import sync_lines
from framework.commands.diagnose.verdict import Verdict
from framework.commands.watch.script_facts import ScriptFacts
from framework.commands.watch.script_rules import (
    LOCKED,
    UNKNOWN,
    limit_of,
    pack_words,
    script_verdicts,
    times,
)
from framework.contracts.span import IDLE, shares
from framework.errors import say

PARTS = {"step": "a step, in Python", "items": "making an item"}
HEADS = ("share", "p50", "p90", "mean", "total")


def show_watch(facts: ScriptFacts) -> None:
    """Print everything."""
    say(f"\npaceline watch: {limit_of(facts)}")
    if facts.steps:
        title = f"where the time of {facts.steps:,} training steps went"
        print_table(title, ["span"], list(HEADS), span_rows(facts))
    say("\n".join(fact_lines(facts)))
    verdicts = script_verdicts(facts)
    if facts.steps:
        say("\nwhat to do, the most promising first" if verdicts else "\nno advice")
    for number, verdict in enumerate(verdicts, 1):
        say("\n".join(verdict_lines(number, verdict)))
    lines = (*facts.lines, *(facts.items.lines if facts.items else ()))
    for line in lines:
        place = f"{os.path.relpath(line.file)}:{line.line} in {line.function}"
        say(f"{100 * line.share:.0f} % of {PARTS[line.part]}: {place}: {line.text}")
    if facts.syncs:
        say("\n".join(sync_lines(facts.syncs, facts.gpu is not None)))
    if facts.waiting > 0.2 and facts.items is not None:
        say("\n".join(equivalent_lines(facts)))


def span_rows(facts: ScriptFacts) -> list[list[str]]:
    """Return the cells of each span."""
    known = shares(facts.spans)
    rows: list[list[str]] = []
    for name, span in facts.spans.items():
        cells = (f"{1e3 * value:.3f} ms" for value in (span.p50_s, span.p90_s, span.mean_s))
        rows.append([name, f"{100 * known[name]:.1f} %", *cells, f"{span.total_s:.2f} s"])
    return rows


def fact_lines(facts: ScriptFacts) -> list[str]:
    """Return lines about what is no span of a step."""
    lines: list[str] = []
    if facts.steps:
        rate = facts.step_records / max(facts.step_s, 1e-9)
        line = f"{rate:,.0f} records/s, {1e3 * facts.step_s:.2f} ms a step"
        line += f", {facts.compute_cores:.1f} of {facts.num_cores} cores busy while computing"
        lines.append(line)
    if IDLE in facts.spans:
        lines.append("wait is the host's; idle, the device's, is what it costs")
    if times_beside := _times_beside(facts):
        lines.append("; ".join(times_beside))
    if facts.ranks > 1:
        lines.append(f"figures of rank 0 of {facts.ranks}")
    return lines


def _times_beside(facts: ScriptFacts) -> list[str]:
    """Return what took 5 ms or more beside the steps that are counted."""
    parts = {
        "before the first batch": facts.before_s,
        "first step, not counted": facts.first_s,
        "validation": facts.validation_s,
        "between epochs": facts.outside_s,
    }
    return [f"{name} {seconds:.2f} s" for name, seconds in parts.items() if seconds >= 0.005]


def verdict_lines(number: int, verdict: Verdict) -> list[str]:
    """Return the gain, the cause and the change."""
    gain = f"{times(verdict.gain)} as fast by the model"
    if verdict.gain == UNKNOWN:
        gain = "the gain is not predictable, so try it"
    lines = [f"{number}. {verdict.rule}: {gain}", f"   {verdict.says}", f"   {verdict.why}"]
    if verdict.learns:
        lines.append("   This changes what the model learns: compare the validation figures.")
    label = "type" if verdict.edit.startswith("paceline ") else "write"
    lines.append(f"   {label}: {verdict.edit}")
    return lines


def equivalent_lines(facts: ScriptFacts) -> list[str]:
    """Return how Paceline trains on the same Dataset."""
    assert facts.loader is not None
    block = f"{{_target_: {facts.loader.dataset}, ...}}"
    lines = [f"in Paceline: paceline train data=dataset 'data.train={block}'"]
    if facts.items is not None and facts.items.lock_share < LOCKED:
        lines[0] += " workers.kind=thread"
    if facts.items is not None and not facts.items.refusal:
        pack = pack_words(facts.loader.dataset)
        lines.append(f"  or pack the items once: {pack}, then data=hdf5 data.train=items.h5")
    return lines


def watch_json(facts: ScriptFacts) -> dict[str, Any]:
    """Return all figures as plain values."""
    return {
        "limit": limit_of(facts),
        "spans": _spans_json(facts),
        "step_s": facts.step_s,
        "records_per_s": facts.step_records / max(facts.step_s, 1e-9),
        "waiting": facts.waiting,
        "facts": {key: value for key, value in asdict(facts).items() if key != "spans"},
        "verdicts": [asdict(verdict) for verdict in script_verdicts(facts)],
    }


def _spans_json(facts: ScriptFacts) -> dict[str, dict[str, float | None]]:
    known = shares(facts.spans)
    return {
        name: {
            "share": known[name],
            "p50_s": span.p50_s,
            "p90_s": span.p90_s,
            "mean_s": span.mean_s,
            "total_s": span.total_s,
        }
        for name, span in facts.spans.items()
    }
