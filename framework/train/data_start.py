"""Let modules of a model compute their first weights from training records."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch, taken
from framework.contracts.training import Objective, StartsFromData

CHUNK = 64  # records of one pass, so that few images lie in memory as floats


class _Reached(Exception):
    """A pass has reached the module, with these inputs."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.inputs = inputs


def start_from_data(
    model: nn.Module,
    objective: Objective,
    sample: Callable[[int], Batch],
    finish: Callable[[Batch], Batch],
) -> None:
    """Start every module that can from training records, in the order of ``modules()``.

    A module gets what reaches it in evaluation, through the modules before it. ``sample`` returns
    at most so many records, and ``finish`` augments and moves them as in evaluation.
    """

    def stop(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """End the pass. The rest of the model is not needed, and may take long."""
        raise _Reached(inputs[0])

    def inputs_of(module: nn.Module, records: Batch) -> Iterator[Tensor]:
        training = model.training
        for numbers in torch.arange(len(records["index"])).split(CHUNK):
            batch = finish(taken(records, numbers))
            hook = module.register_forward_pre_hook(stop)
            model.eval()
            try:
                with torch.no_grad():
                    objective(model, batch)
            except _Reached as reached:
                yield reached.inputs
            finally:
                model.train(training)
                hook.remove()

    for module in model.modules():
        if isinstance(module, StartsFromData):
            module.start_from(inputs_of(module, sample(module.num_start_records)))
