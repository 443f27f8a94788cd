"""What checksum and durable name cost: a state saved as we do, beside plain ``torch.save`` with ``fsync``, and read back, in turn.

    python benchmarks/checkpoint.py [--rounds 15] [--megabytes 1 45 200] [--folder DIR]

A state is weights, moments and an average, as of an Adam run: tensors of the sizes of ResNet-18's. Prints medians of the pairs' ratios.
"""

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from framework.measure.statistics import median, quartiles
from framework.train.checkpoint import read_state, save_state

SHAPES = [
    (512, 512, 3, 3),
    (512, 256, 3, 3),
    (256, 256, 3, 3),
    (128, 128, 3, 3),
    (64, 64, 3, 3),
    (512,),
    (64,),
]


def make_state(megabytes: float) -> dict[str, dict[str, torch.Tensor]]:
    """About so much of tensors, in three groups."""
    draw, state, left = (
        torch.Generator().manual_seed(0),
        {"model": {}, "average": {}, "optimizer": {}},
        megabytes * 1e6,
    )
    while left > 0:
        for shape in SHAPES:
            for group in state.values():
                size = 4 * math.prod(shape)
                if left > 0 and (size <= left or shape == SHAPES[-1]):
                    group[f"{len(group)}"] = torch.randn(shape, generator=draw)
                    left -= size
    return state


def plain_save(path: Path, state: dict) -> None:
    """What most do, and the least that survives a loss of power."""
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())


def seconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def compared(
    first: Callable[[], object], second: Callable[[], object], rounds: int
) -> tuple[float, list[float]]:
    """(median seconds of the first, quartiles of second / first), each pair in turn, the order changing."""
    firsts, ratios = [], []
    for number in range(rounds + 2):
        if number % 2:
            one = seconds(first)
            other = seconds(second)
        else:
            other = seconds(second)
            one = seconds(first)
        if number >= 2:  # burn-in
            firsts.append(one)
            ratios.append(other / one)
    return median(firsts), quartiles(ratios)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 45, 200])
    parser.add_argument("--folder")
    options = parser.parse_args()
    print(
        "| state | saved plainly | ours over it (quartiles) | read plainly | ours over it |\n| --- | --- | --- | --- | --- |"
    )
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(row(megabytes, Path(folder), options.rounds), flush=True)


def row(megabytes: float, folder: Path, rounds: int) -> str:
    """A line of the table."""
    state, plain, ours = make_state(megabytes), folder / "plain.pt", folder / "ours.pt"
    save_s, save = compared(
        lambda: plain_save(plain, state), lambda: save_state(ours, state, 1, 1), rounds
    )
    read_s, read = compared(
        lambda: torch.load(plain, weights_only=True), lambda: read_state(ours), rounds
    )
    told = [f"{middle:.3f} ({low:.3f}, {high:.3f})" for low, middle, high in (save, read)]
    return f"| {megabytes:g} MB | {1e3 * save_s:.1f} ms | {told[0]} | {1e3 * read_s:.1f} ms | {told[1]} |"


if __name__ == "__main__":
    main()
