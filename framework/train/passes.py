"""A forward and a backward pass."""

from collections.abc import Callable
from typing import final

from torch import nn

from framework.contracts.batch import Batch
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective, Outcome


@final
class Passes:
    """Runs the passes of a step, kernel by kernel. ``mark``: the clock's."""

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        parallel: Parallel,
        precision: Precision,
        mark: Callable[[str], None],
    ) -> None:
        self.model, self.objective, self.parallel, self.precision = (
            model,
            objective,
            parallel,
            precision,
        )
        self.mark = mark

    def __call__(self, batch: Batch, weight: float, last: bool) -> Outcome:
        """Add ``weight`` times the loss's gradient. ``last``: of its step."""
        with self.parallel.accumulate(self.model, last):
            with self.precision.autocast():
                outcome = self.objective(self.model, batch)
            self.mark("forward")
            self.precision.backward(outcome.loss if weight == 1.0 else outcome.loss * weight)
        self.mark("backward")  # the exchange of gradients, too
        return outcome
