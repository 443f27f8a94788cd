"""Make the passes of a step: as they are, or captured as a CUDA graph."""

from collections.abc import Callable

from framework.contracts.batch import Batch
from framework.contracts.training import Outcome
from framework.train.cuda_graph import GraphedPasses
from framework.train.parts import Parts
from framework.train.step import Passes, Stepper

AnyPasses = Callable[[Batch, float, bool], Outcome]


def make_passes(
    parts: Parts, stepper: Stepper, position: Callable[[], tuple[int, int]]
) -> AnyPasses:
    """Return the passes over the present model.

    Args:
        parts: The parts of the Trainer.
        stepper: Updates the weights.
        position: Returns the number of the next step and that of the last.
    """
    mark = parts.clock.mark
    passes = Passes(parts.model, parts.objective, parts.parallel, parts.precision, mark)
    if parts.recorder is None:
        return passes
    return GraphedPasses(passes, stepper, parts.recorder, position, parts.say)
