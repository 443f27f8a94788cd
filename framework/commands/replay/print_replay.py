"""Print what a replay found: the step, its records, and the gradients beside its neighbors'."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.cli.print_table import print_table
from framework.cli.units import plural
from framework.errors import say

MOST_RECORDS = 20
MOST_LAYERS = 20
TOTAL = "all layers"


def print_replay(folder: Path, name: str) -> None:
    """Print the results in a folder, which the file ``name`` holds."""
    summary: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    _print_step(summary)
    if summary["search"]:
        search = summary["search"]
        say(f"found among steps {search['first']} to {search['last']}")
    say(f"repeated from {_origin(summary)} in {summary['wall_s']:.1f} s; {_checked(summary)}")
    if summary["ended"]:
        say(f"then the run ended: {summary['ended']}")
    _print_records(summary)
    columns = columns_of(summary)
    rows = gradient_rows(summary, MOST_LAYERS)
    say("norms of the gradients, before clipping")
    print_table("", ["layer"], columns, rows)
    files = ", ".join(summary["files"])
    say(f"written: {folder} ({files})")


def _print_step(summary: Mapping[str, Any]) -> None:
    step = summary["step"]
    skipped = "" if summary["updated"] else ", and the step was skipped"
    rate = f"learning rate {summary['learning_rate']:.3g}"
    means = means_in_words(summary["means"])
    say(f"step {step} of epoch {summary['epoch']}: {means}, {rate}{skipped}")


def means_in_words(means: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in means.items())


def _origin(summary: Mapping[str, Any]) -> str:
    if summary["from_state"] is None:
        return "the start of the run"
    return str(summary["from_state"])


def _checked(summary: Mapping[str, Any]) -> str:
    """Say whether the reports on the way are those of the run."""
    differing = summary["differing_reports"]
    repeated = summary["repeated_reports"]
    if differing:
        why = (
            "; ".join(summary["differences"]) or "look at the threads and libraries of this machine"
        )
        return f"NOT as the run took it: the report of step {differing[0]} differs ({why})"
    if repeated:
        return f"{plural(len(repeated), 'report')} on the way came out equal, bit by bit"
    return "no report of the run lies on the way, so nothing could be compared"


def _print_records(summary: Mapping[str, Any]) -> None:
    records = summary["records"]
    rows = [
        [str(own["index"]), own["key"], str(own["class"] or ""), _loss(own)]
        for own in records[:MOST_RECORDS]
    ]
    title = "records"
    if len(records) > len(rows):
        title = f"the {len(rows)} of {len(records)} records with the highest loss"
        if records[0]["loss"] is None:
            title = f"the first {len(rows)} of {len(records)} records"
    say(title)
    print_table("", ["record", "key", "class"], ["loss"], rows)


def _loss(record: Mapping[str, Any]) -> str:
    return "" if record["loss"] is None else f"{record['loss']:.4f}"


def columns_of(summary: Mapping[str, Any]) -> list[str]:
    """Return the headings of the columns: the step and its neighbors, in their order."""
    steps = [summary["step"], *(own["step"] for own in summary["neighbors"])]
    return [f"step {step}" for step in sorted(steps)]


def gradient_rows(summary: Mapping[str, Any], most: int | None) -> list[list[str]]:
    """Return a row per layer, with a norm for each column, after one for the loss and the total.

    If there are more than ``most`` layers, those whose norm grew most against the neighbors' stay.
    """
    facts = sorted([summary, *summary["neighbors"]], key=lambda own: own["step"])
    layers = list(summary["gradients"])
    if most is not None and len(layers) > most:
        growth = {name: _growth(summary, name) for name in layers}
        kept = sorted(layers, key=lambda name: growth[name], reverse=True)[:most]
        layers = [name for name in layers if name in kept]
    rows = [["loss", *(f"{own['means']['loss']:.4g}" for own in facts)]]
    rows.append([TOTAL, *(f"{_total(own['gradients']):.4g}" for own in facts)])
    for name in layers:
        norms = (own["gradients"].get(name) for own in facts)
        rows.append([name, *("" if norm is None else f"{norm:.4g}" for norm in norms)])
    return rows


def _total(norms: Mapping[str, float]) -> float:
    return math.sqrt(math.fsum(norm * norm for norm in norms.values()))


def _growth(summary: Mapping[str, Any], name: str) -> float:
    """Return the norm of a layer over the largest one of the neighbors."""
    others = [own["gradients"].get(name, 0.0) for own in summary["neighbors"]]
    norm = summary["gradients"][name]
    if not math.isfinite(norm):
        return math.inf
    return norm / max(1e-30, *(other for other in others if math.isfinite(other)), 1e-30)
