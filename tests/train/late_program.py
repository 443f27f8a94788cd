"""Train ranks of which one is slow: ``python -m tests.train.late_program KIND CASES FOLDER``."""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from framework.measure.clock import HostClock
from framework.parallel import ddp, fsdp, virtual
from framework.system.stopping import die_with_parent, leave
from tests.fakes import CPU, FakeLoader, FakeSink, make_data, make_trainer

RANK = int(os.environ.get("RANK", "0"))
STEPS = 16
LATE_S = 0.08
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
    """Two layers, between which a pass may be slow, with or without batch norm."""

    def __init__(self, norm, forward_s, backward_s):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)
        self.norm = nn.Identity() if norm == "none" else nn.BatchNorm1d(8)
        self.seconds = forward_s, backward_s
        self.double()

    def forward(self, x):
        return self.second(Slow.apply(self.norm(self.first(x)), *self.seconds))


class SlowLoader(FakeLoader):
    """Makes every batch slowly."""

    wait_s = 0.0

    def epoch(self, epoch, start=0):
        for micro in super().epoch(epoch, start):
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
        return virtual.VirtualParallel(virtual_ranks=count, num_threads=1, **shared)
    if kind == "fsdp":
        return fsdp.ShardedParallel(unit_parameters=20, sync_batch_norm=False, **shared)
    return ddp.DistributedParallel(sync_batch_norm=False, **shared)


def report_of(case, parallel):
    """Train, and return what this rank knows of a case at the end."""
    norm, place, late = case.split(":")
    parallel.sync_batch_norm = norm == "sync"
    clock = HostClock(of_rank=True)
    parallel.time_exchanges(clock.mark)
    names = ("data", "forward", "backward", "optimizer")
    seconds = {name: LATE_S * (name == place and str(RANK) == late) for name in names}
    model = parallel.wrap(Net(norm, seconds["forward"], seconds["backward"]))
    optimizer = SlowSGD(model.parameters(), lr=0.01)
    optimizer.seconds = seconds["optimizer"]
    ranks = {"rank": RANK, "world_size": parallel.world_size}
    loader = SlowLoader(make_data(BATCH * STEPS), BATCH, clock, **ranks)
    loader.wait_s = seconds["data"]
    parts = {"model": model, "parallel": parallel, "clock": clock, "optimizer": optimizer}
    trainer = make_trainer(train=loader, report_every=5, **parts)
    sink = FakeSink()
    trainer.fit([sink] if RANK == 0 else [])
    whole = trainer.ranks.whole
    return {
        "spans": {name: span._asdict() for name, span in whole.spans.items()},
        "late": whole.late and whole.late._asdict(),
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
