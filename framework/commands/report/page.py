"""The page: one HTML file, with nothing in it that is fetched from anywhere, readable without its script, which only sorts."""

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
from markupsafe import Markup

from framework import __version__
from framework.commands.report.card import cards
from framework.commands.report.chart import Chart
from framework.commands.report.compare_runs import Difference, Relative, differences
from framework.commands.report.figures_table import resources_table, runs_table, spans_table
from framework.commands.report.palette import COLORS
from framework.commands.report.recorded_run import RecordedRun
from framework.commands.report.units import measured

TEMPLATES = Path(__file__).parent / "templates"


class Remark(NamedTuple):
    """What must be known of some runs: their numbers, and what it is."""

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
    """HTML. ``names``: of the runs; ``title``: of the page; ``written``: when."""
    script = (TEMPLATES / "sort.js").read_text(encoding="utf-8")
    tables = [
        runs_table(runs, names, compared),
        spans_table(runs, names),
        resources_table(runs, names),
    ]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html").render(
        title=title,
        written=written,
        version=__version__,
        colors=COLORS,
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),  # noqa: S704  # our own file
        script=Markup(script),  # noqa: S704  # our own file
        script_hash=b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        names=names,
        runs=runs,
        cards=cards(runs, names, compared),
        remarks=remarks(runs),
        commands=together([run.command for run in runs]),
        charts=[chart._replace(svg=Markup(chart.svg)) for chart in drawn],  # noqa: S704  # svg.py escapes what is not ours
        tables=[table for table in tables if table.rows],
        changes=differences([run.config for run in runs]) if len(runs) > 1 else [],
        machines=[
            _of_machine(found)
            for found in differences([run.facts for run in runs], everything=True)
        ],
    )


def _of_machine(found: Difference) -> Difference:
    """In words: ``machine.memory_bytes`` is memory, in GiB."""
    values = [(_sized(found.key, value), numbers) for value, numbers in found.values]
    key = (
        found.key.removeprefix("machine.")
        .removeprefix("versions.")
        .removeprefix("num_")
        .removesuffix("_bytes")
    )
    return Difference(key.replace("_", " "), values)


def _sized(key: str, value: str) -> str:
    return measured(key, float(value)) if key.endswith("_bytes") and value.isdecimal() else value


def remarks(runs: Sequence[RecordedRun]) -> list[Remark]:
    """Why runs did not finish, what is odd about them, and whether they can be compared at all."""
    texts: dict[str, list[int]] = {}
    machines = {
        str({key: value for key, value in run.facts.items() if key.startswith("machine.")})
        for run in runs
        if run.facts
    }
    if len(machines) > 1:
        what = f"measured on {len(machines)} different machines: their times cannot be compared as they stand (see Machine below)"
        texts[what] = [number for number, run in enumerate(runs) if run.facts]
    for number, run in enumerate(runs):
        if run.status != "finished" or run.reason:
            texts.setdefault(
                f"{run.status}: {run.reason}" if run.reason else run.status, []
            ).append(number)
    for number, run in enumerate(runs):
        for note in run.notes:
            texts.setdefault(note, []).append(number)
    return [Remark(numbers, text) for text, numbers in texts.items()]


def together(texts: Sequence[str]) -> list[Remark]:
    """Each text once, with the numbers of those it is of; empty ones left out."""
    found: dict[str, list[int]] = {}
    for number, text in enumerate(texts):
        found.setdefault(text, []).append(number)
    return [Remark(numbers, text) for text, numbers in found.items() if text]
