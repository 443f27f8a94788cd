"""The table of parameter groups, which is printed before the first step."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from framework.train.freeze import Freeze
from framework.train.parameter_groups import GROUP, NAME

HEADINGS = ("group", "tensors", "parameters", "lr", "weight decay", "thaws at")

Row = tuple[str, int, int, float, float | None, str]


def group_table(
    model: nn.Module, optimizer: torch.optim.Optimizer, freeze: Freeze | None
) -> str | None:
    """Return a table with a line for each group and each time of thawing.

    Return None if there is one group, and nothing is frozen.
    """
    rows = _rows(model, optimizer, freeze)
    if len(rows) == 1 and freeze is None:
        return None
    has_decay = any(row[4] is not None for row in rows)
    cells = [_cells(row, has_decay, freeze is not None) for row in rows]
    headings = HEADINGS
    if not has_decay:
        headings = tuple(name for name in headings if name != "weight decay")
    if freeze is None:
        headings = headings[:-1]
    return _aligned([headings, *cells])


def _rows(model: nn.Module, optimizer: torch.optim.Optimizer, freeze: Freeze | None) -> list[Row]:
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    rows: list[Row] = []
    for group in optimizer.param_groups:
        by_thaw: dict[str, list[Any]] = {}
        for parameter in group["params"]:
            name = name_of.get(id(parameter), GROUP)  # what an objective owns is never frozen
            by_thaw.setdefault(_thaw(freeze, name), []).append(parameter)
        for thaw, parameters in by_thaw.items():
            size = sum(parameter.numel() for parameter in parameters)
            label = group.get(NAME, "all")
            decay = group.get("weight_decay")
            rows.append((label, len(parameters), size, float(group["lr"]), decay, thaw))
    return rows


def _thaw(freeze: Freeze | None, name: str) -> str:
    """Return when a parameter thaws, in words: nothing if it is trained now."""
    if freeze is None or not freeze.is_frozen(name):
        return ""
    step = freeze.thaws[name]
    return "never" if step is None else f"step {step}"


def _cells(row: Row, has_decay: bool, has_freeze: bool) -> Sequence[str]:
    name, tensors, size, rate, decay, thaw = row
    cells = [name, f"{tensors:,}", f"{size:,}", f"{rate:.4g}"]
    if has_decay:
        cells.append("" if decay is None else f"{decay:.4g}")
    if has_freeze:
        cells.append(thaw)
    return cells


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines of cells as columns: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts: list[str] = []
    for cells in lines:
        first, *others = zip(cells, widths, strict=True)
        words = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        texts.append("  ".join(words).rstrip())
    return "\n".join(texts)
