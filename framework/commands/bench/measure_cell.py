"""Measure the cells of a grid and describe each measurement as a line of a file."""

from collections.abc import Callable, Generator, Sequence
from statistics import fmean

from framework.commands.bench.grid import BenchCell, BenchPlan, label, schedule
from framework.commands.bench.lines import Line
from framework.errors import ResourceError

START_S = 4.0  # until a process measures; measured on two cores


def measurements(
    cells: Sequence[BenchCell], plan: BenchPlan, ask: Callable[[BenchCell, BenchPlan], Line]
) -> Generator[Line]:
    """Yield a line for each cell and repeat, in the order of measuring.

    A cell that cannot run has a single line, at the start if this is known already. ``ask``
    measures a cell once, as `process.measure_cell` does.
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


def length_s(cells: Sequence[BenchCell], plan: BenchPlan) -> float:
    """Return about how many seconds all measurements take."""
    num_cells = sum(not cell.illegal for cell in cells)
    return num_cells * plan.repeats * (START_S + plan.burn_in + plan.seconds)
