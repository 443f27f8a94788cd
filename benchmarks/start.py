"""Measure where the time from ``paceline train`` to the end of the first optimizer step goes.

    python benchmarks/start.py [--repeats 7] [--checkouts DIR DIR ...] [-- WORDS...]

The first run of each checkout packs the digits and warms the caches, and does not count. Then the
checkouts take turns. Printed are quartiles of the seconds since the start: of the wall, of the
processor for the whole process, and of that for the main thread, which other programs disturb
least.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

# Trains in a process of its own, which it ends after the first step.
CHILD = """
import json, os, sys, time
from importlib.machinery import PathFinder

marks = []

def mark(name):
    wall = time.clock_gettime(time.CLOCK_MONOTONIC) - float(os.environ["START"])
    marks.append((name, wall, time.process_time(), time.thread_time()))

def timed(owner, method, name, after=False):
    call = getattr(owner, method)
    def wrapper(*arguments, **keywords):
        after or mark(name)
        result = call(*arguments, **keywords)
        after and mark(name)
        if name == "first step":
            print("marks", json.dumps(marks), flush=True)
            os._exit(0)
        return result
    setattr(owner, method, wrapper)

def of_train(module):
    timed(module, "main", "command loaded")
    timed(module, "_job", "composed")

def of_run(module):
    mark("modules loaded")
    timed(module, "_fit", "assembled")

LOADED = {
    "framework.commands.train.train": of_train,
    "torch": lambda _: mark("torch loaded"),
    "framework.run": of_run,
    "framework.train.trainer": lambda m: timed(m.Trainer, "_finish_step", "first step", after=True),
}

class Finder:
    def find_spec(self, name, path=None, target=None):
        spec = PathFinder.find_spec(name, path, target) if name in LOADED else None
        if spec is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (execute(module), LOADED.pop(name)(module))
        return spec

mark("Python started")
sys.meta_path.insert(0, Finder())
sys.argv = ["paceline", "train", *sys.argv[1:]]
from framework.__main__ import main
main()
"""


def marks(checkout: Path, words: list[str], folder: str) -> dict[str, list[float]]:
    """Return the seconds by three clocks at each mark of one run."""
    start = str(time.clock_gettime(time.CLOCK_MONOTONIC))
    environment = {**os.environ, "PYTHONPATH": str(checkout), "START": start}
    command = [sys.executable, "-c", CHILD, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("marks ")]
    if not lines:
        raise SystemExit(done.stderr)
    return {name: seconds for name, *seconds in json.loads(lines[0].removeprefix("marks "))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    here = Path(__file__).resolve().parents[1]
    parser.add_argument("--checkouts", nargs="+", type=Path, default=[here])
    parser.add_argument("words", nargs="*")
    given = parser.parse_args()
    runs: dict[Path, list[dict[str, list[float]]]] = {
        path.resolve(): [] for path in given.checkouts
    }
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(given.repeats + 1):
            for path, own in runs.items():
                result = marks(path, given.words, folder)
                if repeat:
                    own.append(result)
    for path, own in runs.items():
        print(f"{path}, {given.repeats} runs: quartiles of the wall, the process, the main thread")
        for name in own[0]:
            figures = np.quantile([run[name] for run in own], [0.25, 0.5, 0.75], axis=0).T
            clocks = "   ".join(" ".join(f"{value:5.2f}" for value in each) for each in figures)
            print(f"  {name:16}{clocks}")


if __name__ == "__main__":
    main()
