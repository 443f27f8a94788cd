"""Run all campaigns at full length and write the table to benchmarks/results/DATE-faults.md.

python -m tests.faults [--only NAME ...] [--seed N] [--share 0.1]

Every attempt has a seed of its own: '--only NAME --seed N --times 1' repeats one attempt.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from framework.measure.host import machine
from tests.faults import (
    bait,
    cycles,
    foreign,
    hostile,
    mutated,
    options,
    spelling,
    starting,
    stores,
    topologies,
    training,
)
from tests.faults.lanes import Row, repeat, told

HEAD = "| fault | tried | survived | took | |\n| --- | --- | --- | --- | --- |"


@contextmanager
def place_of(
    precisions: Sequence[str] = tuple(training.PRECISIONS), ranks: bool = False
) -> Generator[training.Place]:
    """Yield stores and undisturbed runs, also of two ranks if ``ranks``."""
    with tempfile.TemporaryDirectory() as folder:
        place = training.make_place(Path(folder), tuple(precisions))
        yield training.with_ranks(place, Path(folder)) if ranks else place


def kills(times: int, seed: int) -> Iterator[Row]:
    fault = "kill -9 in training, then resumed: the same bits"
    with place_of() as place:
        yield repeat(fault, partial(training.killed_at_random, place), times, seed)


def stops(times: int, seed: int) -> Iterator[Row]:
    fault = "SIGTERM, SIGUSR1: saved, nothing lost"
    with place_of() as place:
        yield repeat(fault, partial(training.stopped_by_signal, place), times, seed)


def saves(times: int, seed: int) -> Iterator[Row]:
    each = -(-times // len(training.POINTS))
    with place_of() as place:
        for point in training.POINTS:
            attempt = partial(training.killed_while_saving, place, point)
            yield repeat(f"kill -9 in a save, at {point}", attempt, each, seed)


def ddp(times: int, seed: int) -> Iterator[Row]:
    fault = "kill -9 of a rank of two or of their parent: all down in 15 s, the same bits"
    with place_of(["fp32"], ranks=True) as place:
        yield repeat(fault, partial(training.one_killed, place), times, seed, lanes=1)


def restarts(times: int, seed: int) -> Iterator[Row]:
    with place_of(["fp32"], ranks=True) as place:
        fault = "kill -9 of a rank of two, max_restarts=3: at work again in 15 s, the same bits"
        yield repeat(fault, partial(training.killed_and_started_again, place), times, seed, lanes=1)
        fault = "kill -9 of a rank that another waits for at the start: all down in 15 s"
        attempt = partial(training.one_killed_while_they_meet, place)
        yield repeat(fault, attempt, max(1, times // 10), seed, lanes=1)


def flips(times: int, seed: int) -> Iterator[Row]:
    fault = "bits of a checkpoint flipped, or cut off: told before unpickling"
    with tempfile.TemporaryDirectory() as folder:
        whole = training.make_state(Path(folder, "state.pt"))
        yield repeat(fault, partial(training.is_refused, whole), times, seed)


CAMPAIGNS: dict[str, tuple[Callable[[int, int], Iterator[Row]], int]] = {
    "kills": (kills, 500),
    "saves": (saves, 140),
    "stops": (stops, 100),
    "starts": (starting.rows, 1000),
    "exits": (starting.rows_of_hosts, 400),
    "ddp": (ddp, 30),
    "restarts": (restarts, 50),
    "flips": (flips, 5000),
    "packing": (stores.rows_of_packing, 200),
    "reading": (stores.rows, 5000),
    "mutated": (mutated.rows, 5000),
    "topologies": (topologies.rows, 100_000),
    "options": (options.rows, 540),
    "spelling": (spelling.rows, 1000),
    "hostile": (hostile.rows, 246),
    "foreign": (foreign.rows, 2000),
    "bait": (bait.rows, 720),
    "cycles": (cycles.rows, 1000),
}


def main() -> int:
    """Run the chosen campaigns. Return 0 if every attempt was survived."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="+", choices=CAMPAIGNS, default=list(CAMPAIGNS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the attempts")
    parser.add_argument("--times", type=int, help="attempts of each, instead")
    options = parser.parse_args()
    rows: list[Row] = []
    print(f"seed {options.seed}\n{HEAD}", flush=True)
    for name in options.only:
        campaign, times = CAMPAIGNS[name]
        for row in campaign(options.times or max(1, round(times * options.share)), options.seed):
            print(told(row), *row.failed, sep="\n", flush=True)
            rows.append(row)
    if options.only == list(CAMPAIGNS) and options.share == 1 and options.times is None:
        write(rows, options.seed)
    return int(any(row.failed for row in rows))


def write(rows: list[Row], seed: int) -> None:
    """Write the table to a file, with the machine that it was measured on."""
    host = machine()
    where = f"{host['num_cores']} cores of {host['processor']}, {host['platform']}"
    lines = [f"# Faults, {time.strftime('%F')}", "", f"`make faults`, seed {seed}; {where}.", ""]
    lines += [HEAD, *map(told, rows)]
    lines += [f"- {line}" for row in rows for line in row.failed]
    path = Path(__file__).parents[2] / "benchmarks/results" / f"{time.strftime('%F')}-faults.md"
    path.write_text("\n".join(lines) + "\n")
    print(f"written: {path.name}")


if __name__ == "__main__":
    sys.exit(main())
