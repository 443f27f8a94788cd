"""The loss and the prediction of each record, without running the model again.

The outputs of the model for a batch are kept, and given once more to the objective: as a whole to
see the predictions, and cut to one record for its loss.
"""

from typing import Any, final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch, mapped, taken
from framework.contracts.training import Objective


@final
class OutputRecorder(nn.Module):
    """A model that keeps its outputs. In all else it is the model inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.outputs: list[Any] = []

    def forward(self, *arguments: Any, **keywords: Any) -> Any:
        output = self.inner(*arguments, **keywords)
        self.outputs.append(output)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


@final
class GivenOutputs(nn.Module):
    """A model that gives outputs it had before, in their order: of a batch, or of one record."""

    def __init__(
        self,
        outputs: list[Any],
        num_records: int,
        record: int | None = None,
        training: bool = False,
    ) -> None:
        super().__init__()
        self._outputs = iter(outputs)
        self._num_records = num_records
        self._record = record
        self.train(training)

    def forward(self, *_: Any, **__: Any) -> Any:
        return mapped(next(self._outputs), self._cut)

    def _cut(self, tensor: Tensor) -> Tensor:
        is_per_record = tensor.dim() > 0 and len(tensor) == self._num_records
        if self._record is None or not is_per_record:
            return tensor
        return tensor[self._record : self._record + 1]


def record_losses(
    objective: Objective, outputs: list[Any], batch: Batch, training: bool = False
) -> Tensor:
    """Return the loss of each record of a batch whose outputs are known: float64 [B], on the host.

    ``outputs`` are what the model returned for the batch, call by call. Whatever the objective
    raises for an output that cannot be cut is raised here.
    """
    num_records = len(batch["index"])
    losses: list[Tensor] = []
    for record in range(num_records):
        model = GivenOutputs(outputs, num_records, record, training)
        losses.append(objective(model, taken(batch, torch.tensor([record]))).loss)
    return torch.stack(losses).double().cpu()
