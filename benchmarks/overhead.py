"""Measure what the Trainer adds to a step of a hand-written loop.

    python benchmarks/overhead.py [--rounds 15] [--steps 300] [--bare]

Both sides have the same model, optimizer and batch, and take turns in one process. The batch stays
in memory, so that only the loops differ. The script prints the microseconds per step of each side,
and the median of the differences round by round.

The hand-written loop is what a careful person writes: zero_grad, forward, loss, backward, step. It
also sums the losses and the right answers and reads them every 50 steps, because the Trainer
reports both. With ``--bare`` it does not sum them.
"""

import argparse
import time

import torch
from torch import nn

from framework.contracts.data import MicroBatch, Source
from framework.contracts.loader import Clock, LoaderContext
from framework.loader.plain import PlainLoader
from framework.measure.clock import HostClock
from framework.measure.statistics import median
from framework.objective.classify import Classify
from framework.order.batches import Order
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.constant import Constant
from framework.train.cuda_graph import CudaRecorder
from framework.train.metrics import TrainPlan
from framework.train.parts import Parts
from framework.train.trainer import Trainer

BATCH, FEATURES, HIDDEN = 64, 256, 256
READ_EVERY = 50  # steps


class MLP(nn.Module):
    """A net of three layers on flat float images, whose step takes well under a millisecond."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(FEATURES, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN),
            nn.ReLU(),
            nn.Linear(HIDDEN, 10),
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.layers(image)


def hand_written(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, torch.Tensor],
    steps: int,
    metrics: bool,
) -> float:
    """Return the seconds of ``steps`` steps.

    With ``metrics``, the loop also sums its losses and right answers.
    """
    device = batch["label"].device
    loss_sum, correct = (
        torch.zeros((), device=device),
        torch.zeros((), dtype=torch.int64, device=device),
    )
    start = time.perf_counter()
    for number in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        logits = model(batch["image"])
        loss = nn.functional.cross_entropy(logits, batch["label"])
        loss.backward()
        optimizer.step()
        if metrics:
            loss_sum += loss.detach()
            correct += (logits.detach().argmax(1) == batch["label"]).sum()
            if number % READ_EVERY == 0:
                loss_sum.item(), correct.item()
    return time.perf_counter() - start


class OneBatch(Source):
    """A Source that yields the same batch every time.

    It makes and cuts the order as any Source does, but reads nothing.
    """

    def __init__(self, batch: dict[str, torch.Tensor], steps: int) -> None:
        self.batch, self.order = batch, Order(BATCH * steps, BATCH, shuffle=True)

    def batches(self, epoch: int, start: int = 0):
        for share in self.order.shares(epoch, start):
            yield MicroBatch(self.batch, share.weight, share.last)

    def stages(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


def make_trainer(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: dict[str, torch.Tensor],
    steps: int,
    clock: Clock | None = None,
    device: torch.device | None = None,
    recorder: CudaRecorder | None = None,
) -> Trainer:
    """Return a Trainer whose loader yields the same batch forever."""
    device = device or torch.device("cpu")
    source = OneBatch(batch, steps)
    clock = clock or HostClock()
    loader = PlainLoader(
        pin_memory=False, context=LoaderContext(source, device, lambda batch, _: batch, clock)
    )
    return Trainer(
        Parts(
            plan=TrainPlan(epochs=10**6, report_every=READ_EVERY),
            model=model,
            objective=Classify("image", "label", 0.0),
            optimizer=optimizer,
            schedule=Constant(),
            train=loader,
            val=None,
            parallel=NoParallel(device=device),
            precision=FP32(tf32=False, device=device),
            clock=clock,
            val_clock=HostClock(),
            recorder=recorder,
        )
    )


def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = MLP()
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--bare", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    theirs, ours = pair(), pair()
    batch = {"image": torch.rand(BATCH, 1, 16, 16), "label": torch.randint(10, (BATCH,))}
    trainer = make_trainer(*ours, batch, options.steps)
    epochs = trainer.epochs()
    rows: list[tuple[float, float]] = []
    for number in range(options.rounds + 2):  # two rounds of burn-in
        hand_s = hand_written(*theirs, batch, options.steps, not options.bare)
        start = time.perf_counter()
        next(epochs)
        rows.append((hand_s, time.perf_counter() - start))
        if number < 2:
            rows.clear()
    hand, mine = ([1e6 * row[i] / options.steps for row in rows] for i in (0, 1))
    differences = sorted(b - a for a, b in zip(hand, mine, strict=True))
    for name, values in (("hand-written loop", hand), ("paceline Trainer", mine)):
        print(
            f"{name:18} {median(values):8.1f} us a step "
            f"(min {min(values):.1f}, max {max(values):.1f})"
        )
    low = differences[len(differences) // 4]
    high = differences[3 * len(differences) // 4]
    print(
        f"difference         {median(differences):8.1f} us a step (quartiles {low:.1f}, {high:.1f})"
    )
    same = all(
        torch.equal(a, b) for a, b in zip(theirs[0].parameters(), ours[0].parameters(), strict=True)
    )
    print(f"same weights after {(options.rounds + 2) * options.steps} steps: {same}")


if __name__ == "__main__":
    main()
