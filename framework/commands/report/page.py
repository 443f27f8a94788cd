"""The page: one HTML file that loads nothing from elsewhere. Its only script sorts the tables."""

import hashlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from framework.cli.page_template import rendered
from framework.cli.units import size
from framework.commands.report.card import cards
from framework.commands.report.chart import Chart
from framework.commands.report.compare_runs import (
    Difference,
    Relative,
    differences,
    num_machines,
)
from framework.commands.report.figures_table import (
    ranks_table,
    resources_table,
    runs_table,
    slow_table,
    spans_table,
)
from framework.commands.report.recorded_run import RecordedRun

TEMPLATES = Path(__file__).parent / "templates"


class Remark(NamedTuple):
    """A text about some runs, with their numbers."""

    numbers: list[int]
    text: str


def page(
    runs: Sequence[RecordedRun],
    names: Sequence[str],
    compared: Relative,
    drawn: Sequence[Chart],
    title: str,
    written: str,
) -> str:
    """Return the HTML. ``written`` is the time at which the page is written."""
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    tables = (
        runs_table(runs, names, compared),
        spans_table(runs, names),
        ranks_table(runs, names),
        resources_table(runs, names),
        slow_table(runs, names),
    )
    return rendered(
        TEMPLATES / "report.html",
        title=title,
        written=written,
        script=Markup(script),  # noqa: S704  # our own file
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        names=names,
        runs=runs,
        cards=cards(runs, names),
        remarks=remarks(runs),
        commands=_together((run.command, n) for n, run in enumerate(runs) if run.command),
        charts=[chart._replace(svg=Markup(chart.svg)) for chart in drawn],  # noqa: S704  # escaped
        tables=[table for table in tables if table.rows],
        changes=differences([run.config for run in runs]),
        machines=_machines(runs),
    )


def _machines(runs: Sequence[RecordedRun]) -> list[Difference]:
    """Return the facts in plain words: ``machine.memory_bytes`` becomes memory, in GiB."""
    machines: list[Difference] = []
    for key, values in differences([run.facts for run in runs], everything=True):
        name = key.removeprefix("machine.").removeprefix("versions.").removeprefix("num_")
        shown = values
        if name.endswith("_bytes"):
            shown = [(_sized(value), numbers) for value, numbers in values]
        machines.append(Difference(name.removesuffix("_bytes").replace("_", " "), shown))
    return machines


def _sized(value: str) -> str:
    return size(float(value)) if value.isdecimal() else value


def remarks(runs: Sequence[RecordedRun]) -> list[Remark]:
    """Return why runs did not finish, their notes, and whether their times can be compared."""
    texts = _about_machines(runs)
    for number, run in enumerate(runs):
        if run.reason:
            texts.append((f"{run.status}: {run.reason}", number))
        elif not run.is_whole:
            texts.append((run.status, number))
        if run.ranks and run.ranks.late:
            texts.append((run.ranks.late.words, number))
    texts += [(note, number) for number, run in enumerate(runs) for note in run.notes]
    return _together(texts)


def _about_machines(runs: Sequence[RecordedRun]) -> list[tuple[str, int]]:
    """Return a remark for each run whose machine is known, if their machines differ."""
    count = num_machines(runs)
    if count < 2:
        return []
    what = (
        f"measured on {count} different machines: their times cannot be compared as they stand "
        "(see Machine below)"
    )
    return [(what, number) for number, run in enumerate(runs) if run.facts]


def _together(texts: Iterable[tuple[str, int]]) -> list[Remark]:
    """Return each text once, with the numbers of the runs that have it."""
    numbers: dict[str, list[int]] = {}
    for text, number in texts:
        numbers.setdefault(text, []).append(number)
    return [Remark(of, text) for text, of in numbers.items()]
