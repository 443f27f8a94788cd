"""Small parts for the Trainer: each keeps its contract and remembers what was asked of it."""

import copy
from collections import Counter
from contextlib import nullcontext

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from framework.contracts import loader, training
from framework.contracts.data import MicroBatch
from framework.contracts.span import Span
from framework.objective.classify import Classify
from framework.order.batches import Order
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.constant import Constant
from framework.train import checkpoint, trainer
from framework.train.metrics import TrainPlan
from framework.train.parts import Parts
from framework.train.weights import Average

CPU = torch.device("cpu")


class FakeLoader(loader.Loader):
    """Micro-batches cut from ``data`` by a real Order."""

    def __init__(self, data, batch_size, clock=None, device=CPU, **order):
        self.data, self.clock, self.device = data, clock, device
        self.order = Order(len(next(iter(data.values()))), batch_size, **order)
        self.num_steps, self.identity = self.order.num_steps, self.order.identity
        self.started, self.yielded, self.closed = [], 0, 0

    def epoch(self, epoch, start=0):
        self.started.append((epoch, start))
        try:
            for indices, weight, last, _ in self.order.shares(epoch, start):
                if self.clock is not None:
                    self.clock.mark("wait")
                self.yielded += 1
                batch = {key: values[indices].to(self.device) for key, values in self.data.items()}
                yield MicroBatch(batch, weight, last)
        finally:
            self.closed += 1


def span(*seconds):
    """Return a Span of steps that took these numbers of seconds."""
    return Span.of(seconds)


def seconds_of(clock):
    """Return the seconds of each span since the last call."""
    return {name: measured.total_s for name, measured in clock.spans().items()}


class FakeClock:
    """A clock on which every mark takes one second. ``marks`` and ``skips`` record the calls."""

    def __init__(self):
        self.marks, self.skips, self._present, self._steps = [], 0, Counter(), {}

    def mark(self, name):
        self.marks.append(name)
        self._present[name] += 1.0
        if name == "report":
            self._end()

    def skip(self):
        self.skips += 1

    def spans(self):
        self._end()
        steps, self._steps = self._steps, {}
        return {name: span(*seconds) for name, seconds in steps.items()}

    def _end(self):
        for name, seconds in self._present.items():
            self._steps.setdefault(name, []).append(seconds)
        self._present = Counter()


class FakeSink:
    """A sink that keeps the reports."""

    def __init__(self):
        self.reports, self.closed, self.flushed = [], False, []

    def write(self, report):
        self.reports.append(report)

    def flush(self):
        self.flushed.append(len(self.reports))

    def close(self):
        self.closed = True

    def of(self, split):
        return [report for report in self.reports if report.split == split]


class FakeCheckpoints:
    """Checkpoints that keep copies (state, weights, best); ``late`` answers ``is_late`` calls."""

    def __init__(self, late=()):
        self.saved, self.finals, self._late = [], [], iter(late)

    def is_late(self):
        return next(self._late, False)

    def save(self, step, state, weights, best, final, ranked=()):
        assert step == state["progress"]["step"]
        self.saved.append((copy.deepcopy(state), copy.deepcopy(weights), best))
        self.finals.append(final)
        return checkpoint.Saved(None, best)


class SkippingPrecision:
    """Single precision that claims an overflow at the calls in ``skipped`` (counted from 0)."""

    def __init__(self, *skipped):
        self.skipped, self.calls = skipped, 0

    def autocast(self):
        return nullcontext()

    def backward(self, loss):
        loss.backward()

    def step(self, optimizer, clip_norm, skip_bad=False, last=True):
        self.calls += 1
        if self.calls - 1 in self.skipped:
            return False
        optimizer.step()
        return True

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class MeanValue:
    """An objective whose loss is the mean of the batch's ``value``, whatever the model does."""

    def __call__(self, model, batch):
        value = batch["value"]
        anchor = sum(parameter.sum() for parameter in model.parameters()) * 0.0
        return training.Outcome(value.mean() + anchor, {"total": value.sum()}, len(value))

    def better(self, new, old):
        return new["loss"] < old["loss"]


class Reads(TorchDispatchMode):
    """A mode that counts the host's reads of a device's numbers."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def stop_after(steps):
    """Return a ``stop`` that is True from its ``steps``-th call on."""
    asked = iter(range(1, 1 << 30))
    return lambda: next(asked) >= steps


def make_data(count, dtype=torch.float64):
    """Return data that can be learned: ``x`` [count, 4] and ``y`` of three classes."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, generator=generator, dtype=dtype)
    return {"x": x, "y": x[:, :3].argmax(1)}


def make_model(dtype=torch.float64, dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)).to(dtype)


class ReportingTrainer(trainer.Trainer):
    """A Trainer whose reports go to ``sinks``."""

    def __init__(self, parts, sinks):
        super().__init__(parts)
        self.sinks = sinks

    def epochs(self, sinks=()):
        return super().epochs(sinks or self.sinks)


def make_trainer(
    data=None, batch_size=4, *, model=None, lr=0.1, momentum=0.9, ema=None, order=None, **parts
):
    """Return a Trainer over ``data``; ``parts`` replace its simple parts or fields of its plan."""
    data = make_data(18) if data is None else data
    model = make_model() if model is None else model
    plan = {name: parts.pop(name) for name in TrainPlan.__dataclass_fields__ if name in parts}
    chosen = {
        "objective": Classify("x", "y", 0.0),
        "schedule": Constant(),
        "train": FakeLoader(data, batch_size, **(order or {})),
        "val": None,
        "parallel": NoParallel(device=CPU),
        "precision": FP32(tf32=False, device=CPU),
        "clock": FakeClock(),
        "val_clock": FakeClock(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum),
        "average": None if ema is None else Average(model, ema),
        **parts,
    }
    sinks = chosen.pop("sinks", ())
    parts = Parts(plan=TrainPlan(**{"epochs": 1, **plan}), model=model, **chosen)
    return ReportingTrainer(parts, sinks)
