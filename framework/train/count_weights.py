"""Let what counts weigh: pixels with a class or tokens, say, if an objective counts them.

The loss of a pass is the mean over what counts in it. The gradient of a step is that of the mean
over all that counts in the step, however passes and ranks cut its records.
"""

from typing import final

import torch
from torch import Tensor

from framework.contracts.parallel import Parallel
from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.train.ema import local


@final
class CountWeights:
    """Weighs the losses of passes, and scales the gradients of a step once.

    The weight of a pass makes means over records of its loss, because gradients are averaged over
    ranks. Here the pass counts ``c`` in ``n`` records: its loss also gets the factor ``c / (n k)``,
    and the gradients ``k N / C`` with the sums over the step. k is a power of two near C / N of
    the first pass, so that 16-bit gradients keep their range, and changes no bit.

    Args:
        parallel: Sums over the ranks.
        optimizer: Has the parameters whose gradients are scaled.
    """

    def __init__(self, parallel: Parallel, optimizer: torch.optim.Optimizer) -> None:
        self._parallel = parallel
        self._optimizer = optimizer
        self._counts: bool | None = None  # whether outcomes have a count; None: not known yet
        self._k: Tensor | None = None  # on the device
        self._sums: Tensor | None = None  # of the step: C and N, int64 [2]

    def weighed(self, outcome: Outcome, weight: float, last: bool, num_records: int) -> Tensor:
        """Return the loss whose gradients are added up. Does not wait for the device.

        Args:
            outcome: The outcome of a pass. Its loss becomes 0 if nothing counts in it.
            weight: The weight of the pass, 0 for a filler.
            last: Whether it is the last pass of its step.
            num_records: Records of the pass.

        Raises:
            ConfigError: C220 if only some passes have a count.
        """
        if self._counts is None:
            self._counts = outcome.count is not None
        if self._counts != (outcome.count is not None):
            what = f"is {outcome.count}, unlike one pass before"
            raise ConfigError(220, "Outcome.count", what, "return it always, or never")
        if outcome.count is None:
            return outcome.loss if weight == 1.0 else outcome.loss * weight
        count = outcome.count
        if not isinstance(count, Tensor):  # filled on the device: a captured step copies nothing
            count = torch.full_like(outcome.loss, count, dtype=torch.int64)
        outcome.loss = torch.where(count > 0, outcome.loss, 0.0)
        if weight == 1.0 and last and self._sums is None and self._parallel.world_size == 1:
            return outcome.loss
        if weight == 0:
            count, num_records = torch.zeros_like(count), 0
        sums = torch.stack([count.long(), torch.full_like(count, num_records).long()])
        self._sums = sums if self._sums is None else self._sums + sums
        if self._k is None:
            count_of_all, records_of_all = self._parallel.sum_on_device(sums).unbind()
            power = (count_of_all / records_of_all).log2().round().exp2()
            self._k = torch.where(count_of_all > 0, power, 1.0)
        factor = count.double() * (weight / max(num_records, 1)) / self._k
        return outcome.loss * factor.to(torch.promote_types(outcome.loss.dtype, torch.float32))

    def rescale(self) -> None:
        """Scale the gradients of a whole step, if its passes or ranks were weighed."""
        if self._sums is None:
            return
        count, num_records = self._parallel.sum_on_device(self._sums).double().unbind()
        self._sums = None
        assert self._k is not None
        factor = torch.where(count > 0, self._k * num_records / count, 0.0)
        own = [
            local(parameter.grad)
            for group in self._optimizer.param_groups
            for parameter in group["params"]
            if parameter.grad is not None
        ]
        dense = [gradient for gradient in own if not gradient.is_sparse]
        if dense:
            torch._foreach_mul_(dense, factor)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        for gradient in own:
            if gradient.is_sparse:
                gradient.mul_(factor)
