"""How long the first step of each epoch waits for its batch, beside the median step.

Each epoch of 31 steps reads JPEGs, and a validation follows. A step and a pass of the validation
sleep for a fixed time, as if a GPU computed. Run it at two revisions to compare them:

    python -m benchmarks.epoch_start --workers 2
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.data import SourceContext
from framework.contracts.loader import LoaderContext
from framework.contracts.training import Outcome
from framework.data.folder import folder_source
from framework.loader.plain import PlainLoader
from framework.loader.prefetch import PrefetchLoader
from framework.measure.clock import HostClock
from framework.order.batches import Order
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.constant import Constant
from framework.train.metrics import TrainPlan
from framework.train.parts import Parts
from framework.train.trainer import Trainer
from framework.transform.random_resized_crop import RandomResizedCrop

CPU = torch.device("cpu")
NUM_STEPS = 31


class Waits(HostClock):
    """A clock that keeps the seconds of every wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._at = time.perf_counter()

    def mark(self, name: str) -> None:
        now = time.perf_counter()
        if name == "wait":
            self.seconds.append(now - self._at)
        self._at = now
        super().mark(name)


class Sleeping:
    """An objective that takes a fixed time."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome:
        time.sleep(self.seconds)
        return Outcome(model(torch.zeros(1, 1)).sum(), {})

    def better(self, new: Any, old: Any) -> bool:
        return new["loss"] < old["loss"]


def write_images(folder: Path, count: int) -> None:
    """Write ``count`` JPEGs of 500 x 375 pixels, of which 16 differ."""
    draw = np.random.default_rng(0)
    (folder / "c").mkdir()
    for number in range(count):
        path = folder / "c" / f"{number:05}.jpg"
        if number < 16:
            small = draw.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            cv2.imwrite(str(path), cv2.resize(small, (500, 375), interpolation=cv2.INTER_CUBIC))
        else:
            os.link(folder / "c" / f"{number % 16:05}.jpg", path)


def loader_of(folder: Path, training: bool, clock: Waits, given: argparse.Namespace) -> Any:
    context = SourceContext(
        lambda count: Order(count, given.batch_size, shuffle=training),
        RandomResizedCrop([176, 176], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True),
        training=training,
        num_workers=given.workers,
        worker_kind=given.kind,
        num_cores=2,
    )
    source = folder_source(str(folder), context=context)
    loader_context = LoaderContext(source, CPU, lambda batch, _: batch, clock)
    if given.loader == "plain":
        return PlainLoader(False, context=loader_context)
    return PrefetchLoader(2, False, context=loader_context)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", default="process", choices=["thread", "process"])
    parser.add_argument("--loader", default="prefetch", choices=["plain", "prefetch"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=150.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        train, val = Path(name, "train"), Path(name, "val")
        train.mkdir()
        val.mkdir()
        write_images(train, NUM_STEPS * given.batch_size)
        write_images(val, 4 * given.batch_size)
        clock, val_clock = Waits(), Waits()
        loaders = [
            loader_of(train, True, clock, given),
            loader_of(val, False, val_clock, given),
        ]
        model = nn.Linear(1, 1)
        parts = Parts(
            plan=TrainPlan(epochs=given.epochs),
            model=model,
            objective=Sleeping(given.step_ms / 1e3),
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            schedule=Constant(),
            train=loaders[0],
            val=loaders[1],
            parallel=NoParallel(device=CPU),
            precision=FP32(tf32=False, device=CPU),
            clock=clock,
            val_clock=val_clock,
        )
        start = time.perf_counter()
        Trainer(parts).fit()
        wall_s = time.perf_counter() - start
        for loader in loaders:
            loader.close()
    print(f"{given.kind}, {given.workers} workers, loader={given.loader}: {wall_s:.2f} s")
    for split, waits, length in (("train", clock, NUM_STEPS), ("val", val_clock, 4)):
        firsts = [f"{1e3 * wait_s:.1f}" for wait_s in waits.seconds[::length]]
        median = statistics.median(waits.seconds)
        print(f"  {split}: first waits {', '.join(firsts)} ms; median wait {1e3 * median:.1f} ms")
    print(f"  a step takes {given.step_ms:g} ms besides")


if __name__ == "__main__":
    main()
