"""One short measurement of whole training steps; a search is many of them."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple, final

from framework.commands.probe import Probe, Windows
from framework.config.training_parts import training_parts
from framework.order import Order
from framework.train.metrics import Progress
from framework.train.trainer import Trainer

Config = dict[str, Any]


class Visit(NamedTuple):
    """``rate``: records per second; ``step_s``: wall seconds per step, the first one's included."""

    rate: float
    step_s: float


@final
class _Counted:
    """Asked after every step whether it was the last. The first step, in which threads, processes and memory start, is not counted."""

    def __init__(self, order: Order, probe: Probe, seconds: float, burn_in_s: float) -> None:
        self.order, self.device, self.seconds, self.burn_in_s = (
            order,
            probe.assembly.device,
            seconds,
            burn_in_s,
        )
        self.ahead, self.ready, self.period = (
            probe.ahead,
            probe.ready,
            probe.assembly.train.num_steps,
        )
        self.windows: Windows | None = None
        self.progress = Progress()
        self._seen = self._first_epoch = 0

    def follow(self, progress: Progress, epoch: int) -> None:
        """Count what ``progress`` says, from ``epoch`` on."""
        progress.epoch = self._first_epoch = epoch
        self.progress = progress

    def __call__(self) -> bool:
        before, self._seen = self._seen, self._records()
        if self.windows is None:
            self.windows = Windows(
                self.seconds,
                self.burn_in_s,
                self.device,
                num_windows=1,
                ahead=self.ahead,
                ready=self.ready,
                period=self.period,
            )
            return False
        return self.windows.count(self._seen - before)

    def _records(self) -> int:
        """Since the start; the last batch of an epoch may be short."""
        whole_epochs = self.progress.epoch - self._first_epoch
        return whole_epochs * self.order.num_taken + min(
            self.progress.epoch_step * self.order.batch_size, self.order.num_taken
        )


def visit(
    config: Config, allowed: Sequence[str], epoch: int, seconds: float, burn_in_s: float
) -> Visit:
    """The rate of the steps of ``config``, in an order that no other ``epoch`` has: nothing is read because it was read just before.

    Takes at least three steps; where epochs are short, whole ones, which may take twice as long. Raises what a run would raise.
    """
    probe = Probe(config, allowed)
    try:
        counted = _Counted(probe.assembly.train_source.order, probe, seconds, burn_in_s)
        trainer = Trainer(training_parts(probe.assembly, stop=counted))
        counted.follow(trainer.progress, epoch)
        start = time.perf_counter()
        trainer.fit()
        wall_s = time.perf_counter() - start
    finally:
        probe.close()
    assert counted.windows is not None
    return Visit(counted.windows.rate({}).records_per_s, wall_s / trainer.progress.step)
