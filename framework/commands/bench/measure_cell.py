"""The measurements of a grid, one after the other, as lines of a file."""

from collections.abc import Callable, Generator, Sequence
from statistics import fmean

from framework.commands.bench.grid import BenchCell, BenchPlan, label, schedule
from framework.commands.bench.lines import Line
from framework.errors import ResourceError

START_S = 4.0  # until a process measures: Python, torch, the parts, the model; on two cores


def measurements(
    cells: Sequence[BenchCell], plan: BenchPlan, ask: Callable[[BenchCell, BenchPlan], Line]
) -> Generator[Line, None, None]:
    """A line per cell and repeat, in the order of measuring. A cell that cannot run has one line: first where that is known already.

    ``ask`` measures a cell once, as ``process.measure_cell`` does.
    """
    dropped = {number for number, cell in enumerate(cells) if cell.illegal}
    yield from (
        {"cell": cells[number].choice, "illegal": cells[number].illegal}
        for number in sorted(dropped)
    )
    for repeat, number in schedule(len(cells), plan.repeats, plan.seed):
        if number in dropped:
            continue
        line = _line(cells[number], repeat, ask(cells[number], plan))
        if "illegal" in line:
            dropped.add(number)
        yield line


def _line(cell: BenchCell, repeat: int, found: Line) -> Line:
    if "windows" in found:
        return {
            "cell": cell.choice,
            "repeat": repeat,
            "records_per_s": fmean(found["windows"]),
            **found,
        }
    if "illegal" in found:
        return {"cell": cell.choice, "illegal": found["illegal"]}
    fix = "try 'paceline train' with this choice; debug=trace shows more"  # nobody foresaw it; out of memory is among it
    return {
        "cell": cell.choice,
        "illegal": str(ResourceError(185, label(cell.choice), found["failed"], fix)),
    }


def length_s(cells: Sequence[BenchCell], plan: BenchPlan) -> float:
    """About how long all measurements take, in seconds."""
    return (
        sum(not cell.illegal for cell in cells)
        * plan.repeats
        * (START_S + plan.burn_in + plan.seconds)
    )
