"""The cells of a grid, measured in rounds. Each measurement is a line of a file."""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from framework.errors import ResourceError

Config = dict[str, Any]
Line = dict[str, Any]
START_S = 4.0  # until a process measures; measured on two cores
Choice = dict[str, str]  # the swept keys and their values, as typed


@dataclass(frozen=True)
class BenchCell:
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

    def length_s(self, num_cells: int) -> float:
        """Return about how many seconds all measurements of ``num_cells`` cells take."""
        return num_cells * self.repeats * (START_S + self.burn_in + self.seconds)


def combinations(axes: Mapping[str, Sequence[str]]) -> list[Choice]:
    """Return every combination once, with the last key changing fastest."""
    values = [dict.fromkeys(choices) for choices in axes.values()]
    return [dict(zip(axes, chosen, strict=True)) for chosen in product(*values)]


def label(choice: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in choice.items()) or "as given"


def schedule(num_cells: int, repeats: int, seed: int) -> Iterator[tuple[int, int]]:
    """Yield (repeat, cell) in the order of measuring, which ``seed`` determines.

    Every repeat has every cell, so that a machine that becomes slower is as slow for all. Each
    repeat has another order, so that no cell always follows the same one.
    """
    for repeat in range(repeats):
        for cell in np.random.default_rng([seed, repeat]).permutation(num_cells):
            yield repeat, int(cell)


def measurements(
    cells: Sequence[BenchCell], plan: BenchPlan, ask: Callable[[BenchCell, BenchPlan], Line]
) -> Generator[Line]:
    """Yield a line for each cell and repeat, in the order of measuring.

    A cell that cannot run has a single line, first if this is known. ``ask`` measures a cell once.
    """
    illegal = {number for number, cell in enumerate(cells) if cell.illegal}
    for number in sorted(illegal):
        yield {"cell": cells[number].choice, "illegal": cells[number].illegal}
    for repeat, number in schedule(len(cells), plan.repeats, plan.seed):
        if number in illegal:
            continue
        line = _line(cells[number], repeat, ask(cells[number], plan))
        if "illegal" in line:
            illegal.add(number)
        yield line


def _line(cell: BenchCell, repeat: int, result: Line) -> Line:
    if "windows" in result:
        mean = fmean(result["windows"])
        return {"cell": cell.choice, "repeat": repeat, "records_per_s": mean, **result}
    if "illegal" in result:
        return {"cell": cell.choice, "illegal": result["illegal"]}
    fix = "try 'paceline train' with this choice; debug=trace shows more"
    error = ResourceError(185, label(cell.choice), result["failed"], fix)
    return {"cell": cell.choice, "illegal": str(error)}
