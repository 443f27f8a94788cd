"""Which cells a grid has, and in which order they are measured."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

Config = dict[str, Any]
Choice = dict[str, str]  # what was swept: key -> value, as typed


@dataclass(frozen=True)
class BenchCell:
    """One combination of a grid. ``config``: plain values, resolved; ``allowed``: the user's packages; ``illegal``: why it cannot run."""

    choice: Choice
    config: Config
    allowed: tuple[str, ...] = ()
    illegal: str = ""


@dataclass(frozen=True)
class BenchPlan:
    """``what``: ``train``, ``loader``, ``host`` or ``compute``. A measurement takes ``burn_in`` and then ``seconds``, both in seconds;
    ``seed``: of the order.
    """

    what: str
    repeats: int
    seconds: float
    burn_in: float
    seed: int


def combinations(axes: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Every combination, the last key changing fastest, none twice. Without axes there is one: nothing."""
    values = [dict.fromkeys(choices) for choices in axes.values()]
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*values)]


def label(choice: Mapping[str, str]) -> str:
    """What to call a cell in a line."""
    return " ".join(f"{key}={value}" for key, value in choice.items()) or "as given"


def schedule(num_cells: int, repeats: int, seed: int) -> Iterator[tuple[int, int]]:
    """(repeat, cell) in the order of measuring: every cell once a repeat, in another order each time, the same for the same ``seed``.

    Round robin, so that a machine that becomes slower meanwhile is as slow for all; shuffled, so that no cell always follows the same one.
    """
    for repeat in range(repeats):
        for cell in np.random.default_rng([seed, repeat]).permutation(num_cells):
            yield repeat, int(cell)
