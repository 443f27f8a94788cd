"""Compare the choices of ``paceline tune`` with the defaults and with the best of a whole grid.

    python benchmarks/tune.py [--only digits,small,photos] [--budget 60] [--tunes 2] [--laps 3]
                              [--visit 1.0] [--pairs 10]
                              [--small FOLDER] [--photos STORE] [--work DIR]

The goal: its choices are never slower than the defaults, and within 5 % of the grid's best.

There are three runs:

- ``digits``: the digits
- ``small``: small images from a folder of JPEGs (``train/`` and ``test/``, a subfolder per class),
  packed raw, as in the recipe cifar10
- ``photos``: photographs stored as JPEGs, cut by random_resized_crop

Without ``--small`` and ``--photos``, the images are smooth noise.

For each run:

1. The real command tunes ``--tunes`` times, each time in a process of its own.
2. Every candidate with every depth is measured ``--laps`` times in random order, each time for
   ``--visit`` seconds of whole training steps. The grid's best has the highest median.
3. The grid's best, the tuned choices and the defaults take turns ``--pairs`` times. The fastest of
   many candidates owes its place partly to luck, so only a new measurement is fair.

The script prints a table and writes all figures to DIR/tune.json.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import cv2
import numpy as np

from framework.cli.arguments import Grant
from framework.cli.hydra_app import composed
from framework.cli.run_ranks import pack_missing
from framework.commands.tune.search_reading import (
    Candidate,
    Measure,
    candidates,
    measure_in,
    present,
    whole_grid,
)
from framework.measure.host import machine
from framework.measure.statistics import median, quartiles
from framework.trials.trial_process import TrialProcess, TrialSetting

NOBODY = Grant(frozenset(), "")
LOADERS = ("plain", "prefetch", "stream")


def make_images(folder: Path, count: int, size: int, seed: int) -> None:
    """Write JPEGs of smooth noise in ten classes."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        pixels = cv2.resize(
            rng.integers(0, 256, (8, 8, 3), np.uint8), (size, size), interpolation=cv2.INTER_CUBIC
        )
        path = folder / str(number % 10) / f"{number:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), pixels)


def small_words(given: str | None, work: Path) -> list[str]:
    folder = Path(given) if given else work / "small"
    if not folder.exists():
        make_images(folder / "train", 8000, 32, 0)
        make_images(folder / "test", 500, 32, 1)
    return ["recipes=cifar10", f"source={folder}", f"dataset={work / 'small-packed'}"]


def photo_words(given: str | None, work: Path) -> list[str]:
    store = Path(given) if given else work / "photos.h5"
    if not store.exists():
        make_images(work / "photos", 3200, 500, 2)  # an epoch of 100 steps
        run("pack", f"input.path={work / 'photos'}", f"output.path={store}")
    crop = [
        "transform=random_resized_crop",
        "transform.size=[64,64]",
        "model=resnet9",
        "model.width=4",
        "model.num_classes=1000",
    ]
    return [
        *crop,
        f"data.train={store}",
        "data.val=null",
        "prepare=null",
        "batch_size=32",
        "optim.lr=0.01",
    ]


def run(*words: str) -> str:
    """Run ``paceline WORDS``, and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "framework", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    return done.stdout


def tuned(words: list[str], budget: float, number: int, work: Path) -> dict:
    """Run ``paceline tune``, and return its report."""
    output = work / f"found-{number}.json"
    text = run(
        "tune",
        *words,
        f"budget={budget}",
        f"name=n{number}",
        "force=true",
        f"output={output}",
        "--config-dir",
        str(work),
    )
    print(
        "\n".join(f"    {line}" for line in text.splitlines() if line.startswith("final")),
        flush=True,
    )
    return json.loads(output.read_text())


def lap_all(
    measure: Measure, grid: list[Candidate], laps: int, visit_s: float
) -> dict[Candidate, list[float]]:
    """Measure every candidate once a lap, in random order. Return all rates."""
    rates: dict[Candidate, list[float]] = {candidate: [] for candidate in grid}
    for lap in range(laps):
        for candidate in random.Random(lap).sample(grid, len(grid)):
            rates[candidate].append(measure(candidate, visit_s))
    return rates


def take_turns(
    measure: Measure, some: list[Candidate], count: int, visit_s: float
) -> dict[Candidate, list[float]]:
    """Measure the candidates ``count`` times in turn, in alternating order. Return all rates."""
    rates: dict[Candidate, list[float]] = {candidate: [] for candidate in some}
    for number in range(count):
        for candidate in some if number % 2 else some[::-1]:
            rates[candidate].append(measure(candidate, visit_s))
    return rates


def ratio(rates: dict[Candidate, list[float]], first: Candidate, second: Candidate) -> list[float]:
    """Return the quartiles of the first candidate's rates over the second's, pair by pair."""
    ratios = [mine / its for mine, its in zip(rates[first], rates[second], strict=True)]
    return quartiles(ratios) if first != second else [1.0] * 3


def prove(words: list[str], options: argparse.Namespace, work: Path) -> dict:
    """Tune a run, measure the grid and the winners, and return the figures of its row."""
    reports = [tuned(words, options.budget, number, work) for number in range(options.tunes)]
    winners = [Candidate(**report["winner"]) for report in reports]
    config, allowed = composed(words, NOBODY)
    pack_missing(config, allowed)
    loaders = {name: composed([*words, f"loader={name}"], NOBODY)[0]["loader"] for name in LOADERS}
    with closing(TrialProcess()) as process:
        facts = process.facts(TrialSetting("benchmarks/tune.py", config, allowed))
        default = present(config, facts, "prefetch")
        grid = whole_grid(candidates(default, facts, loaders))
        measure = measure_in(process, config, allowed, default, loaders)
        start = time.monotonic()
        rates = lap_all(measure, grid, options.laps, options.visit)
        grid_s = time.monotonic() - start
        best = max(grid, key=lambda candidate: median(rates[candidate]))
        some = list(dict.fromkeys([default, *winners, best]))
        again = take_turns(measure, some, options.pairs, options.visit)
    return {
        "words": words,
        "default": str(default),
        "winners": [str(winner) for winner in winners],
        "grid_best": str(best),
        "grid_size": len(grid),
        "grid_s": grid_s,
        "grid": {str(candidate): measured for candidate, measured in rates.items()},
        "again": {str(candidate): measured for candidate, measured in again.items()},
        "over_default": [ratio(again, winner, default) for winner in winners],
        "over_best": [ratio(again, winner, best) for winner in winners],
        "tunes": reports,
    }


def told(quartiles: list[float]) -> str:
    low, middle, high = quartiles
    return f"{middle:.3f} ({low:.3f}, {high:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="digits,small,photos")
    parser.add_argument("--budget", type=float, default=60)
    parser.add_argument("--tunes", type=int, default=2)
    parser.add_argument("--laps", type=int, default=3)
    parser.add_argument("--visit", type=float, default=1.0)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--small")
    parser.add_argument("--photos")
    parser.add_argument("--work")
    options = parser.parse_args()
    work = Path(options.work or tempfile.mkdtemp(prefix="paceline-tune-"))
    work.mkdir(parents=True, exist_ok=True)
    runs = {
        "digits": lambda: ["recipes=digits", f"dataset={work / 'digits'}"],
        "small": lambda: small_words(options.small, work),
        "photos": lambda: photo_words(options.photos, work),
    }
    rows: dict[str, dict] = {}
    print(
        "| run | tuned | over the defaults | grid's best | over the grid's best |\n"
        "| --- | --- | --- | --- | --- |",
        flush=True,
    )
    for name in options.only.split(","):
        rows[name] = row = prove(runs[name](), options, work)
        for winner, default, best in zip(
            row["winners"], row["over_default"], row["over_best"], strict=True
        ):
            of = f"{row['grid_best']} of {row['grid_size']}"
            print(f"| {name} | {winner} | {told(default)} | {of} | {told(best)} |", flush=True)
        (work / "tune.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
