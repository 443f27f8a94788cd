"""Print what was seen of a script: the headline, the spans, the advice and the waiting calls."""

from dataclasses import asdict
from typing import Any

from framework.cli.tables import print_table
from framework.contracts.span import IDLE, shares
from framework.diagnosis.facts import ScriptFacts
from framework.diagnosis.findings import advice_lines, sync_lines
from framework.diagnosis.judge import script_limit, script_verdicts
from framework.diagnosis.loading_rules import LOCKED
from framework.diagnosis.script_rules import pack_words
from framework.diagnosis.step_rules import place_of
from framework.errors import say

PARTS = {"step": "a step, in Python", "items": "making an item"}
HEADS = ("share", "p50", "p90", "mean", "total")
LEAST_S = 0.005  # what takes less beside the steps is left out
WAITING = 0.2  # if a smaller share of a step waits, Paceline would not be much faster


def show_watch(facts: ScriptFacts) -> None:
    """Print everything."""
    say(f"\npaceline watch: {script_limit(facts)}")
    if facts.steps:
        known = shares(facts.spans)
        rows: list[list[str]] = []
        for name, span in facts.spans.items():
            cells = (f"{1e3 * value:.3f} ms" for value in (span.p50_s, span.p90_s, span.mean_s))
            rows.append([name, f"{100 * known[name]:.1f} %", *cells, f"{span.total_s:.2f} s"])
        title = f"where the time of {facts.steps:,} training steps went"
        print_table(title, ["span"], list(HEADS), rows)
    say("\n".join(fact_lines(facts)))
    verdicts = script_verdicts(facts)
    if facts.steps:
        say("\nwhat to do, the most promising first" if verdicts else "\nno advice")
    for number, verdict in enumerate(verdicts, 1):
        say("\n".join(advice_lines(number, verdict)))
    for line in (*facts.lines, *(facts.items.lines if facts.items else ())):
        place = f"{place_of(line)} in {line.function}"
        say(f"{100 * line.share:.0f} % of {PARTS[line.part]}: {place}: {line.text}")
    if facts.syncs:
        say("\n".join(sync_lines(facts.syncs, facts.gpu is not None)))
    items, loader = facts.items, facts.loader
    if facts.waiting > WAITING and items is not None and loader is not None:
        block = f"{{_target_: {loader.dataset}, ...}}"
        threads = " workers.kind=thread" if items.lock_share < LOCKED else ""
        say(f"in Paceline: paceline train data=dataset 'data.train={block}'{threads}")
        if not items.refusal:
            pack = pack_words(loader.dataset)
            say(f"  or pack the items once: {pack}, then data=hdf5 data.train=items.h5")


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
    beside = {
        "before the first batch": facts.before_s,
        "first step, not counted": facts.first_s,
        "validation": facts.validation_s,
        "between epochs": facts.outside_s,
    }
    if long := [
        f"{name} {seconds:.2f} s" for name, seconds in beside.items() if seconds >= LEAST_S
    ]:
        lines.append("; ".join(long))
    if facts.ranks > 1:
        lines.append(f"figures of rank 0 of {facts.ranks}")
    return lines


def watch_json(facts: ScriptFacts) -> dict[str, Any]:
    """Return all figures as plain values."""
    known = shares(facts.spans)
    spans = {
        name: {
            "share": known[name],
            "p50_s": span.p50_s,
            "p90_s": span.p90_s,
            "mean_s": span.mean_s,
            "total_s": span.total_s,
        }
        for name, span in facts.spans.items()
    }
    return {
        "limit": script_limit(facts),
        "spans": spans,
        "step_s": facts.step_s,
        "records_per_s": facts.step_records / max(facts.step_s, 1e-9),
        "waiting": facts.waiting,
        "facts": {key: value for key, value in asdict(facts).items() if key != "spans"},
        "verdicts": [asdict(verdict) for verdict in script_verdicts(facts)],
    }
