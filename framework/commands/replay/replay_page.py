"""A page of a replayed step: its records with their pictures, and the gradients by layer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from framework.cli.page_template import rendered
from framework.commands.replay.print_replay import columns_of, gradient_rows, means_in_words
from framework.errors import printable
from framework.media.decode import data_uri

TEMPLATES = Path(__file__).parent / "templates"


def replay_page(summary: Mapping[str, Any], pictures: Mapping[str, Tensor]) -> str:
    """Return the HTML.

    Args:
        summary: What ``replay.json`` holds.
        pictures: The images of each field, in the order of the records: uint8.
    """
    records: list[dict[str, Any]] = []
    for place, record in enumerate(summary["records"]):
        sources = [
            (name, data_uri(images[place].numpy()))
            for name, images in pictures.items()
            if place < len(images)
        ]
        facts = [
            (name, printable(str(value))) for name, value in record.items() if value is not None
        ]
        records.append({"pictures": sources, "facts": facts})
    return rendered(
        TEMPLATES / "replay.html",
        run=printable(summary["run"]),
        step=summary["step"],
        means=means_in_words(summary["means"]),
        records=records,
        columns=columns_of(summary),
        rows=gradient_rows(summary, most=None),
    )
