"""The cells of a grid, and the order in which they are measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Config = dict[str, Any]
Choice = dict[str, str]  # the swept keys and their values, as typed


@dataclass(frozen=True)
class BenchCell:
    """A combination of choices."""

    choice: Choice
    config: Config  # plain and resolved values
    allowed: tuple[str, ...] = ()  # the user's packages
    illegal: str = ""  # why it cannot run


@dataclass(frozen=True)
class BenchPlan:
    what: str  # train, loader, host or compute
    repeats: int
    seconds: float  # of a measurement
    burn_in: float  # seconds before it
    seed: int  # of the order


def combinations(axes: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Return every combination once, with the last key changing fastest."""
    values = [dict.fromkeys(choices) for choices in axes.values()]
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*values)]


def label(choice: Mapping[str, str]) -> str:
    """Return the name of a cell."""
    return " ".join(f"{key}={value}" for key, value in choice.items()) or "as given"


def schedule(num_cells: int, repeats: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield (repeat, cell) in the order of measuring, which ``seed`` determines.

    Every repeat has every cell, so that a machine that becomes slower is as slow for all. Each
    repeat has another order, so that no cell always follows the same one.
    """
    for repeat in range(repeats):
        for cell in np.random.default_rng([seed, repeat]).permutation(num_cells):
            yield repeat, int(cell)
