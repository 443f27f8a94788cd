"""Measure what the clock costs, and check that its spans are right.

    python benchmarks/clock.py [--rounds 100] [--device cpu|cuda] [--width 384]

**Cost**: steps of about a millisecond run with the clock on and off, in turn. The script prints the
median of the differences round by round, and what the marks of a step cost in a loop that does
nothing else.

**Agreement**: the same steps run with our clock, which never waits for the device, and with a clock
that waits at every mark, so that a span contains only its own work. Rounds alternate. For each span
that takes at least 2 % of the step, the script compares the median steps (p50), and prints the
median ratio. On CUDA, our ``idle`` is compared with the ``wait`` of the synchronized run. On the
CPU nothing runs beside the host, so the ratios only show the noise.
"""

import argparse
import time
from collections.abc import Iterator
from typing import final

import torch
from overhead import make_trainer
from torch import nn

from framework.contracts.loader import Clock
from framework.contracts.span import IDLE, Span, SpanSum
from framework.measure.clock import HostClock, NoClock, make_clock
from framework.measure.statistics import median, quartiles
from framework.train.trainer import Trainer

BATCH, SIDE = 64, 16
STEPS = {"cpu": 50, "cuda": 200}  # of a round: short, so that both sides meet the same noise
REPORT_EVERY = 50  # as in make_trainer
NAMES = ("wait", "copy", "forward", "backward", "optimizer", "report")


@final
class SynchronizedClock(Clock):
    """A clock that waits for the device at every mark, too slow for real training.

    When a mark is taken, everything before it has ended.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._clock = device, HostClock()

    def mark(self, name: str) -> None:
        self._wait()
        self._clock.mark(name)

    def skip(self) -> None:
        self._wait()
        self._clock.skip()

    def spans(self) -> dict[str, Span]:
        return self._clock.spans()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def perceptron(width: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(SIDE * SIDE, width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )


def convolutions() -> nn.Module:
    """Return a net whose step takes some milliseconds on a GPU, longer than its launches take."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 128, 3, padding=1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


def trainer_of(
    model: nn.Module, batch: dict[str, torch.Tensor], clock: Clock, device: torch.device
) -> Trainer:
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return make_trainer(model, optimizer, batch, STEPS[device.type], clock, device)


def rounds(trainer: Trainer, device: torch.device) -> Iterator[dict[str, Span]]:
    """Train a round at each step of this iterator. Yield the spans of that round."""
    for _ in trainer.epochs():
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        spans, trainer.spans = trainer.spans.whole, SpanSum()
        yield spans


def timed(iterator: Iterator[dict[str, Span]], device: torch.device) -> tuple[float, float]:
    """Run a round. Return the microseconds of a step in wall time and in this thread's CPU time.

    Other programs on the machine lengthen CPU time less than wall time.
    """
    wall_s, cpu_s = time.perf_counter(), time.thread_time()
    next(iterator)
    return tuple(
        1e6 * seconds / STEPS[device.type]
        for seconds in (time.perf_counter() - wall_s, time.thread_time() - cpu_s)
    )


def spread(values: list[float]) -> str:
    low, middle, high = quartiles(values)
    return f"{middle:.2f} (quartiles {low:.2f}, {high:.2f})"


def cost(device: torch.device, num_rounds: int, width: int) -> None:
    batch = {"image": torch.rand(BATCH, 1, SIDE, SIDE), "label": torch.randint(10, (BATCH,))}
    clocks = {"off": NoClock(), "on": make_clock(device)}
    runners = {
        name: rounds(trainer_of(perceptron(width), batch, clock, device), device)
        for name, clock in clocks.items()
    }

    def round_with(name: str) -> tuple[float, float]:
        return timed(runners[name], device)

    for name in ("off", "on") * 3:  # burn-in
        round_with(name)
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for number in range(num_rounds):
        order = ("off", "on") if number % 2 else ("on", "off")
        times = {name: round_with(name) for name in order}
        pairs.append((times["off"], times["on"]))
    for place, name in enumerate(("wall", "CPU")):
        off_us, on_us = (median(pair[which][place] for pair in pairs) for which in (0, 1))
        relative = [100 * (pair[1][place] - pair[0][place]) / pair[0][place] for pair in pairs]
        print(
            f"{name} time a step   off {off_us:.1f} us, on {on_us:.1f} us, "
            f"difference {spread(relative)} %"
        )
    marks_us = bare_cost_us(make_clock(device), device)
    print(f"marks alone        {marks_us:.2f} us a step, {marks_us / 10:.2f} % of a millisecond")


def bare_cost_us(clock: Clock, device: torch.device) -> float:
    """Return the microseconds of the host that a step's marks take, the least of 20 rounds.

    This includes a step's share of computing the spans every ``REPORT_EVERY`` steps.
    """
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(REPORT_EVERY):
            for name in NAMES:
                clock.mark(name)
        clock.spans()
        best = min(best, time.perf_counter() - start)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            clock.spans()
    return 1e6 * best / REPORT_EVERY


def agreement(device: torch.device, num_rounds: int, width: int) -> None:
    cuda = device.type == "cuda"
    shape, model = (
        ((256, 3, 32, 32), convolutions)
        if cuda
        else ((BATCH, 1, SIDE, SIDE), lambda: perceptron(width))
    )
    batch = {"image": torch.rand(shape), "label": torch.randint(10, shape[:1])}
    batch = {name: values.pin_memory() if cuda else values for name, values in batch.items()}
    ours = rounds(trainer_of(model(), batch, make_clock(device), device), device)
    synchronized = rounds(trainer_of(model(), batch, SynchronizedClock(device), device), device)
    for runner in (ours, synchronized) * 2:
        next(runner)
    ratios: dict[str, list[float]] = {}
    for _ in range(num_rounds):
        spans = next(ours)
        truth = next(synchronized)
        told = {
            name: spans[IDLE] if name == "wait" and IDLE in spans else spans[name] for name in truth
        }
        step_s = sum(span.quantile_s(0.5) for span in truth.values())
        for name, span in truth.items():
            if span.quantile_s(0.5) >= 0.02 * step_s:
                ratios.setdefault(name, []).append(
                    told[name].quantile_s(0.5) / span.quantile_s(0.5)
                )
    for name in (name for name in NAMES if name in ratios):
        print(f"{name:18} {spread(ratios[name])} of the synchronized run's")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--width", type=int, default=384)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    print(f"cost, {options.rounds} rounds of {STEPS[device.type]} steps each in turn, on {device}")
    cost(device, options.rounds, options.width)
    print("agreement with a fully synchronized run of the same steps: the ratio of median steps")
    agreement(device, options.rounds, options.width)


if __name__ == "__main__":
    main()
