"""Print what was measured of several ranks, and the advice that follows from it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from framework.cli.own_keys import config_flags
from framework.cli.print_table import print_table
from framework.commands.diagnose.print_diagnosis import Changed, advice_lines
from framework.commands.diagnose.rank_facts import RankFacts
from framework.commands.diagnose.verdict import Verdict
from framework.errors import say


def show(
    facts: RankFacts,
    verdicts: Sequence[Verdict],
    cause: Verdict | None,
    changed: Changed,
    config_dir: str | None,
) -> None:
    """Print the spans of all ranks, and the advice. ``changed`` is as in ``print_diagnosis``."""
    if cause is not None:
        say(f"{limit_of(cause)}\n")
    title = f"a step of {facts.num_ranks} ranks, over {facts.num_steps} steps"
    heads = ["min ms", "median ms", "max ms"]
    print_table(title, ["span"], heads, span_rows(facts), [""])
    say(f"{work_line(facts)}\n")
    if verdicts:
        say("what to do about the ranks, the most promising first")
    for number, verdict in enumerate(verdicts, 1):
        say("\n".join(advice_lines(number, verdict, changed, config_flags(config_dir))))


def limit_of(cause: Verdict) -> str:
    """Return what limits training, in words."""
    return f"Ranks limit training. {cause.says}"


def span_rows(facts: RankFacts) -> list[list[str]]:
    """Return (name, min, median, max, which rank is the slowest) of each span."""
    rows: list[list[str]] = []
    for name, span in facts.spans.items():
        times = [f"{1e3 * seconds:,.2f}" for seconds in (span.min_s, span.median_s, span.max_s)]
        rows.append([name, *times, f"slowest: rank {span.rank}"])
    return rows


def work_line(facts: RankFacts) -> str:
    """Return a line on exchanges, waiting and the work of the ranks."""
    parts = [
        f"exchanges alone {100 * facts.exchange_share:.0f} %",
        f"waiting for ranks {100 * facts.waiting_share:.0f} %",
    ]
    if facts.unsynced_s is not None:
        parts.append(f"without exchange of gradients {1e3 * facts.unsynced_s:.2f} ms a step")
    return f"{1e3 * facts.step_s:.2f} ms a step: {', '.join(parts)}"


def as_json(
    facts: RankFacts,
    verdicts: Sequence[Verdict],
    cause: Verdict | None,
    words: Sequence[str],
    seconds: float,
) -> dict[str, Any]:
    """Return all facts and verdicts as plain values, named as those of one process."""
    return {
        "seconds": seconds,
        "command": ["paceline", "diagnose", *words],
        "cause": "" if cause is None else cause.rule,
        "limit": "" if cause is None else limit_of(cause),
        "facts": {"ranks": facts.as_dict()},
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "rejected": [],
        "applied": None,
    }
