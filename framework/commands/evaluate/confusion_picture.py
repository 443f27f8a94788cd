"""A picture of which classes are taken for which."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from framework.commands.report.chart import styled
from framework.system.durable import open_durable

MOST_NAMED = 40  # classes that get names on the axes
MOST_WRITTEN = 15  # classes whose counts are written into the squares
LONGEST = 18  # characters of a name
INCH_PER_CLASS = 0.32


def write_confusion(path: Path, confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> None:
    """Write a PNG: the truth by row, the guess by column, as shares of each row.

    Args:
        path: The picture.
        confusion: Counts, [C][C].
        classes: The names of the classes.
    """
    counts = np.array(confusion, np.float64)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    number = len(counts)
    side = min(16.0, max(4.5, 2 + INCH_PER_CLASS * number))
    with styled():
        figure = Figure(figsize=(side + 1, side), layout="constrained", facecolor="white")
        axes = figure.add_subplot()
        axes.grid(visible=False)
        picture = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
        figure.colorbar(picture, label="share of the true class", fraction=0.046)
        axes.set(xlabel="predicted", ylabel="true")
        if number <= MOST_NAMED:
            names = [name if len(name) <= LONGEST else f"{name[:LONGEST]}…" for name in classes]
            axes.set_xticks(range(number), names, rotation=90)
            axes.set_yticks(range(number), names)
        if number <= MOST_WRITTEN:
            for row, column in zip(*counts.nonzero(), strict=True):
                color = "white" if shares[row, column] > 0.5 else "black"
                text = f"{counts[row, column]:.0f}"
                axes.text(column, row, text, ha="center", va="center", color=color, fontsize=8)
        file = BytesIO()
        figure.savefig(file, format="png", dpi=110, metadata={"Software": None})
    with open_durable(path) as out:
        out.write(file.getvalue())
