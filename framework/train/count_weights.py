"""Let what counts weigh: pixels with a class or tokens, say, if an objective counts them.

The loss of a pass is the mean over what counts in it. The gradient of a step is that of the mean
over all that counts in the step, however passes and ranks cut its records.
"""

from dataclasses import is_dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from framework.contracts.batch import leaves
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

    A pass in which nothing counts adds zero, although the derivative of a mean of nothing is
    infinite: hooks drop its gradient where it reaches the model's output.

    With ``sums_records``, ranks bring batches of any size. What counts is then summed over the
    ranks in any case, and ``n`` is the weight.
    """

    def __init__(
        self, parallel: Parallel, optimizer: torch.optim.Optimizer, sums_records: bool = False
    ) -> None:
        self._parallel = parallel
        self._optimizer = optimizer
        self._sums_records = sums_records
        self._counts: bool | None = None  # whether outcomes have a count; None: not known yet
        self._k: Tensor | None = None  # on the device
        self._sums: Tensor | None = None  # of the step: C and N, float64 [2]
        self._counted: bool | Tensor | None = None  # whether something counts in this pass
        self._watching: list[RemovableHandle] = []  # hooks of the model and of what is beside it
        self._hooks: list[RemovableHandle] = []  # of the outputs of this pass

    def watch(self, model: nn.Module) -> None:
        """Drop the gradients of passes in which nothing counts, of this model and beside it."""
        self._remove(self._watching)
        if self._counts is False:
            return

        def watch_output(_: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in leaves(vars(output) if is_dataclass(output) else output):
                if tensor.requires_grad:
                    self._hooks.append(tensor.register_hook(self._kept))

        own = set(model.parameters())
        not_compiled: Any = torch.compiler.disable(watch_output)
        self._watching = [model.register_forward_hook(not_compiled)]
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                if parameter not in own and parameter.requires_grad:
                    self._watching.append(parameter.register_hook(self._kept))

    def _kept(self, gradient: Tensor) -> Tensor | None:
        """Return the gradient, or zeros if nothing counts. None leaves it as it is."""
        if self._counted is None or self._counted is True:
            return None
        if self._counted is False:
            return torch.zeros_like(gradient)
        if not gradient.is_sparse:
            return torch.where(self._counted.to(gradient.device), gradient, 0.0)
        values = torch.where(self._counted, gradient._values(), 0.0)  # noqa: SLF001
        return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape)  # noqa: SLF001

    def end_pass(self) -> None:
        """Let gradients that the objective computes itself before the next loss pass."""
        self._counted = None
        self._remove(self._hooks)

    def _remove(self, hooks: list[RemovableHandle]) -> None:
        for hook in hooks:
            hook.remove()
        hooks.clear()

    def weighed(self, outcome: Outcome, weight: float, last: bool, num_records: int) -> Tensor:
        """Return the loss whose gradients are added up. Does not wait for the device.

        The loss of ``outcome`` becomes 0 if nothing counts in it. ``weight`` is 0 for a filler.
        ConfigError C220 if only some passes have a count.
        """
        if self._counts is None:
            self._counts = outcome.count is not None
            if not self._counts:
                self._remove(self._watching)
        if self._counts != (outcome.count is not None):
            what = f"is {outcome.count}, unlike one pass before"
            raise ConfigError(220, "Outcome.count", what, "return it always, or never")
        if outcome.count is None and not self._sums_records:
            return outcome.loss if weight == 1.0 else outcome.loss * weight
        count = num_records if outcome.count is None else outcome.count
        self._counted = count > 0
        if not isinstance(count, Tensor):  # filled on the device: a captured step copies nothing
            count = torch.full_like(outcome.loss, count, dtype=torch.int64)
        outcome.loss = torch.where(count > 0, outcome.loss, 0.0)
        if weight == 1.0 and last and self._sums is None and self._parallel.world_size == 1:
            return outcome.loss
        if weight == 0:
            count, num_records = torch.zeros_like(count), 0
        num: float = weight if self._sums_records else num_records
        count = count.double()
        sums = torch.stack([count, torch.full_like(count, num)])
        self._sums = sums if self._sums is None else self._sums + sums
        if self._k is None:
            count_of_all, records_of_all = self._parallel.sum_on_device(sums).unbind()
            power = (count_of_all / records_of_all).log2().round().exp2()
            self._k = torch.where(count_of_all > 0, power, 1.0)
        factor = count * (weight / num if num else 0.0) / self._k
        return outcome.loss * factor.to(torch.promote_types(outcome.loss.dtype, torch.float32))

    def rescale(self) -> None:
        """Scale the gradients of a whole step, if its passes or ranks were weighed."""
        if self._sums is None:
            return
        count, num_records = self._parallel.sum_on_device(self._sums).unbind()
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
