"""Train ranks of which one is slow in one place: ``python -m tests.train.late_program KIND CASES
FOLDER`` leaves what rank 0 reports of each case in ``FOLDER/0.json``.

A case is ``NORM:PLACE:RANK``, as in ``sync:forward:1``.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from framework.measure.clock import RankClock
from framework.parallel.ddp import DistributedParallel
from framework.parallel.fsdp import ShardedParallel
from framework.parallel.virtual import VirtualParallel
from framework.system.stopping import die_with_parent, leave
from tests.fakes import CPU, FakeLoader, FakeSink, make_data, make_trainer

RANK = int(os.environ.get("RANK", "0"))
STEPS = 16
LATE_S = 0.04
BATCH = 16
torch.set_num_threads(1)


class Slow(torch.autograd.Function):
    """The identity, which takes its time in one direction."""

    @staticmethod
    def forward(ctx, x, forward_s, backward_s):
        ctx.backward_s = backward_s
        time.sleep(forward_s)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(ctx.backward_s)
        return gradient, None, None


class Net(nn.Module):
    """Two layers with batch norm, between which a pass may be slow."""

    def __init__(self, norm, forward_s=0.0, backward_s=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm, self.last = (
            (nn.Identity(), nn.Identity())
            if norm == "none"
            else (nn.BatchNorm1d(8), nn.BatchNorm1d(3))
        )
        self.seconds = forward_s, backward_s
        self.double()

    def forward(self, x):
        x = self.norm(self.first(x))
        if self.training:
            x = Slow.apply(x, *self.seconds)
        return self.last(self.second(x))


class SlowLoader(FakeLoader):
    """Makes some batches slowly."""

    def __init__(self, *arguments, wait_s, every, **options):
        super().__init__(*arguments, **options)
        self.wait_s, self.every = wait_s, every

    def epoch(self, epoch, start=0):
        for number, micro in enumerate(super().epoch(epoch, start)):
            if number % self.every == 0:
                time.sleep(self.wait_s)
            self.clock.mark("wait")
            yield micro


class SlowSGD(torch.optim.SGD):
    """Updates slowly."""

    seconds = 0.0

    def step(self, closure=None):
        time.sleep(self.seconds)
        return super().step(closure)


def make_parallel(kind, count):
    shared = {"num_processes": count, "timeout_s": 60.0, "device": CPU}
    if kind == "virtual":
        return VirtualParallel(virtual_ranks=count, num_threads=1, **shared)
    shared["sync_batch_norm"] = False
    if kind == "fsdp":
        return ShardedParallel(unit_parameters=20, **shared)
    return DistributedParallel(**shared)


def report_of(case, parallel):
    """Train, and return what this rank knows of a case at the end."""
    norm, place, late = case.split(":")
    parallel.sync_batch_norm = norm == "sync"
    clock = RankClock()
    parallel.time_exchanges(clock.mark)
    delay_s = LATE_S if str(RANK) == late else 0.0
    seconds = {name: delay_s * (name == place) for name in ("data", "forward", "backward")}
    model = parallel.wrap(Net(norm, seconds["forward"], seconds["backward"]))
    optimizer = SlowSGD(model.parameters(), lr=0.01)
    optimizer.seconds = delay_s * (place == "optimizer")
    loader = SlowLoader(
        make_data(BATCH * STEPS),
        BATCH,
        clock,
        wait_s=max(seconds["data"], 4 * delay_s * (place == "some data")),
        every=4 if place == "some data" else 1,
        rank=RANK,
        world_size=parallel.world_size,
    )
    trainer = make_trainer(
        model=model,
        parallel=parallel,
        clock=clock,
        train=loader,
        optimizer=optimizer,
        report_every=5,
    )
    sink = FakeSink()
    trainer.fit([sink] if RANK == 0 else [])
    ranks = trainer.ranks.whole
    return {
        "spans": {name: span._asdict() for name, span in ranks.spans.items()},
        "late": ranks.late and ranks.late._asdict(),
        "words": ranks.late and ranks.late.words,
        "reports": [report.ranks and report.ranks.num_ranks for report in sink.reports],
    }


def main(kind, cases, folder):
    parallel = make_parallel(kind, int(os.environ["WORLD_SIZE"]))
    result = [report_of(case, parallel) for case in cases.split(",")]
    parallel.close()
    (Path(folder) / f"{RANK}.json").write_text(json.dumps(result))
    leave(0)


if __name__ == "__main__":
    die_with_parent()
    main(*sys.argv[1:])
