"""Measure what the checksum and the durable name of a saved state cost.

    python benchmarks/checkpoint.py [--rounds 15] [--megabytes 1 45 200] [--folder DIR]

A state is saved and read back by us, and by plain ``torch.save`` (with ``fsync``) and
``torch.load``. The two sides take turns. The tensors have the sizes of ResNet-18's weights, and the
groups are the weights, an average and the moments, as in a run with Adam. The script prints the
median ratio of the pairs, with its quartiles.
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
    """Return about ``megabytes`` of random tensors, in three groups."""
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
    """Save as most programs do, with the least effort that survives a loss of power."""
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
    """Run both actions ``rounds`` times in turn, in alternating order.

    Returns:
        The median seconds of the first, and the quartiles of second / first.
    """
    firsts, ratios = [], []
    for number in range(rounds + 2):
        if number % 2:
            first_s = seconds(first)
            second_s = seconds(second)
        else:
            second_s = seconds(second)
            first_s = seconds(first)
        if number >= 2:  # burn-in
            firsts.append(first_s)
            ratios.append(second_s / first_s)
    return median(firsts), quartiles(ratios)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--megabytes", type=float, nargs="+", default=[1, 45, 200])
    parser.add_argument("--folder")
    options = parser.parse_args()
    print(
        "| state | saved plainly | ours over it (quartiles) | read plainly | ours over it |\n"
        "| --- | --- | --- | --- | --- |"
    )
    for megabytes in options.megabytes:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            print(row(megabytes, Path(folder), options.rounds), flush=True)


def row(megabytes: float, folder: Path, rounds: int) -> str:
    """Return the line of the table for a state of ``megabytes``."""
    state, plain, ours = make_state(megabytes), folder / "plain.pt", folder / "ours.pt"
    save_s, save = compared(
        lambda: plain_save(plain, state), lambda: save_state(ours, state, 1, 1), rounds
    )
    read_s, read = compared(
        lambda: torch.load(plain, weights_only=True), lambda: read_state(ours), rounds
    )
    told = [f"{middle:.3f} ({low:.3f}, {high:.3f})" for low, middle, high in (save, read)]
    return (
        f"| {megabytes:g} MB | {1e3 * save_s:.1f} ms | {told[0]} "
        f"| {1e3 * read_s:.1f} ms | {told[1]} |"
    )


if __name__ == "__main__":
    main()
