"""A short measurement of training steps; a search makes many."""

import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any, NamedTuple, final

from framework.commands.probe import Probe, Windows
from framework.config.training_parts import training_parts
from framework.order import Order
from framework.train.metrics import Progress
from framework.train.trainer import Trainer

Config = dict[str, Any]


class Visit(NamedTuple):
    rate: float  # records per second
    step_s: float  # wall seconds per step, including the first


def visit(
    config: Config, allowed: Sequence[str], epoch: int, seconds: float, burn_in_s: float
) -> Visit:
    """Measure training steps of ``config``; raise what a run would raise.

    It takes at least three steps, and whole epochs if they are short, which may take twice as long.

    Args:
        config: Plain and resolved values.
        allowed: The user's packages.
        epoch: Where the order starts. Another epoch does not repeat the records just read.
        seconds: The time to measure.
        burn_in_s: The time before it that does not count.

    """
    with closing(Probe(config, allowed)) as probe:
        counter = _StepCounter(probe, epoch, seconds, burn_in_s)
        trainer = Trainer(training_parts(probe.assembly, stop=counter.is_done))
        trainer.progress.epoch = epoch
        counter.progress = trainer.progress
        start = time.perf_counter()
        trainer.fit()
        wall_s = time.perf_counter() - start
    assert counter.windows is not None
    return Visit(counter.windows.rate({}).records_per_s, wall_s / trainer.progress.step)


@final
class _StepCounter:
    """Counts the records of steps. The first step, which starts workers, does not count."""

    def __init__(self, probe: Probe, epoch: int, seconds: float, burn_in_s: float) -> None:
        self.probe = probe
        self.epoch = epoch
        self.seconds = seconds
        self.burn_in_s = burn_in_s
        self.progress = Progress()
        self.windows: Windows | None = None
        self._seen = 0

    def is_done(self) -> bool:
        """Count a step. Return whether it was the last."""
        assembly = self.probe.assembly
        before = self._seen
        self._seen = records_taken(assembly.train_source.order, self.progress, self.epoch)
        if self.windows is not None:
            return self.windows.count(self._seen - before)
        self.windows = Windows(
            self.seconds,
            self.burn_in_s,
            assembly.device,
            num_windows=1,
            ahead=self.probe.ahead,
            ready=self.probe.ready,
            period=assembly.train.num_steps,
        )
        return False


def records_taken(order: Order, progress: Progress, first_epoch: int) -> int:
    """Return the records taken since the start of ``first_epoch``.

    The last batch of an epoch may be short.
    """
    in_epoch = min(progress.epoch_step * order.batch_size, order.num_taken)
    return (progress.epoch - first_epoch) * order.num_taken + in_epoch
