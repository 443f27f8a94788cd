"""Compare the records per second of predicting and of evaluating the same records, in turn.

    python benchmarks/predict.py [--rounds 9] [--photos FOLDER]

There are three data sets: digits of 8 x 8 pixels in a store, photographs in a store (the JPEGs as
they are), and the same photographs as files. An evaluation is one pass of
``framework.train.parts``, as in training. A prediction is all that ``paceline predict`` does
after the model is loaded, from the first file to the finished table. Both have the same readers,
threads, loader and batches. Without ``--photos``, photographs are smooth noise of 500 x 375 pixels.
The ratio of CPU time does not depend on other programs.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import torch

import framework
from framework.commands.predict.prediction_job import Prediction, predict
from framework.config.prepare_data import input_of
from framework.config.saved_run import SavedRun
from framework.measure.clock import NoClock
from framework.measure.host import threads_per_rank
from framework.measure.statistics import median, quartiles
from framework.train.parts import evaluate

CLASSES = 4
STORE = "framework.input.store.StoreInput"
FOLDER = {
    "_target_": "framework.input.folder.FolderInput",
    "classes": None,
    "label_pattern": None,
    "labeled": False,
}


def paceline(*words: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "framework", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)


def make_photos(given: str | None, count: int) -> None:
    """Write ``photos/CLASS/*.jpg``: the given photographs, or smooth noise."""
    files = [None] * count
    if given:
        files = sorted(Path(given).rglob("*.[jJ]*"))[:count]
    draw = np.random.default_rng(0)
    for number, file in enumerate(files):
        path = Path(f"photos/{number % CLASSES}/{number:04}.jpg")
        path.parent.mkdir(parents=True, exist_ok=True)
        if file is not None:
            path.write_bytes(file.read_bytes())
            continue
        noise = draw.integers(0, 256, (24, 32, 3), np.uint8)
        cv2.imwrite(str(path), cv2.resize(noise, (500, 375), interpolation=cv2.INTER_CUBIC))


def prepare(photos: str | None) -> None:
    """Train both runs for a few steps, and pack what they read."""
    paceline("train", "recipes=digits", "max_steps=12", "hydra.run.dir=digits", "dataset=d")
    digits = ",".join(["d/train.h5"] * 32)
    paceline("pack", "input=store", f"input.path=[{digits}]", "output.path=digits.h5")
    make_photos(photos, 400)
    paceline("pack", "input.path=photos", "output.path=photos.h5")
    words = [
        "data.train=photos.h5",
        "data.val=photos.h5",
        "transform=resize",
        "transform.size=[224,224]",
    ]
    words += [
        "model=resnet9",
        "model.width=2",
        "batch_size=64",
        "max_steps=1",
        "validate_every=1000",
    ]
    paceline("train", *words, "hydra.run.dir=photos_run")


def evaluated(run: SavedRun, store: str) -> float:
    loader = run.loader(run.source(store))
    start = time.perf_counter()
    _, count, _ = evaluate(
        run.model, loader.epoch(0), run.objective, run.precision, NoClock(), run.parallel
    )
    seconds = time.perf_counter() - start
    loader.close()
    return count / seconds


def predicted(run: SavedRun, block: dict) -> float:
    Path("table.csv").unlink(missing_ok=True)
    start = time.perf_counter()
    source = run.prepared(input_of("input", block, {"on_error": "fail"}, ()))
    prediction = Prediction(run, source, block, Path("table.csv"), "table", 1, skip_bad=False)
    made = predict(prediction, lambda _, __: None)
    return made.num_records / (time.perf_counter() - start)


def measure(name: str, rounds: int, both: dict[str, Callable[[], float]]) -> None:
    """Run both in turn, in alternating order. Print medians and the ratio of pairs."""
    rates: dict[str, list[float]] = {key: [] for key in both}
    cpu_s: dict[str, list[float]] = {key: [] for key in both}
    for number in range(rounds + 1):
        keys = list(both) if number % 2 else list(both)[::-1]
        for key in keys:
            before_s = time.process_time()
            rate = both[key]()
            if number:  # the first round warms up
                rates[key].append(rate)
                cpu_s[key].append(time.process_time() - before_s)
    ratios = [b / a for a, b in zip(rates["evaluate"], rates["predict"], strict=True)]
    low, middle, high = quartiles(ratios)
    shown = "  ".join(f"{key} {median(values):,.0f} records/s" for key, values in rates.items())
    cpu = median([a / b for a, b in zip(cpu_s["evaluate"], cpu_s["predict"], strict=True)])
    ratio = f"ratio {middle:.3f} (quartiles {low:.3f} to {high:.3f}), of CPU time {cpu:.3f}"
    print(f"{name:24} {shown}  {ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--photos")
    options = parser.parse_args()
    photos = options.photos and os.path.abspath(options.photos)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        prepare(photos)
        torch.set_num_threads(threads_per_rank())
        digits, pictures = framework.load("digits"), framework.load("photos_run")
        for name, run, store, block in (
            ("digits, a store", digits, "digits.h5", {"_target_": STORE, "path": "digits.h5"}),
            (
                "photographs, a store",
                pictures,
                "photos.h5",
                {"_target_": STORE, "path": "photos.h5"},
            ),
            ("photographs, files", pictures, "photos.h5", {**FOLDER, "path": "photos"}),
        ):
            measure(
                name,
                options.rounds,
                {
                    "evaluate": lambda run=run, store=store: evaluated(run, store),
                    "predict": lambda run=run, block=block: predicted(run, block),
                },
            )
        os.chdir("/")


if __name__ == "__main__":
    main()
