"""One optimizer step: its passes, learning rate, average of the weights, and what is not finite."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from framework.contracts.batch import Batch, leaves, num_records
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective, Outcome, Schedule
from framework.errors import ConfigError, DistributedError, NumericError, PacelineError
from framework.schedule.plateau import Plateau
from framework.schedule.torch_schedule import OPTIONS, TorchSchedule
from framework.train.metrics import PassPlace, Progress, TrainPlan
from framework.train.objective_state import ObjectiveState, is_same
from framework.train.parameter_groups import NAME, UNTIL
from framework.train.weights import Average, is_sharded, local

SET = ("params", "lr", "capturable", *OPTIONS)  # of a group, which no optimizer changes
FIX = "lower optim.lr, set clip_norm, or look at the data"


@final
class CountWeights:
    """Weights of passes by what an objective counts, such as pixels with a class or tokens.

    The loss of a pass is the mean over what counts in it. The gradient of a step is that of the
    mean over all that counts in the step, however passes and ranks cut its records.

    The weight of a pass makes means over records of its loss, because gradients are averaged over
    ranks. Here the pass counts ``c`` in ``n`` records: its loss also gets the factor ``c / (n k)``,
    and the gradients ``k N / C`` with the sums over the step. k is a power of two near C / N of
    the first pass, so that 16-bit gradients keep their range, and changes no bit. A pass in which
    nothing counts adds zero: hooks drop the infinite gradient where it reaches the model's output.

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
        self._watching: list[RemovableHandle] = []  # hooks of the model and of other weights
        self._hooks: list[RemovableHandle] = []  # of the outputs of this pass

    def watch(self, model: nn.Module) -> None:
        """Drop the gradients of passes in which nothing counts, of this model and other weights."""
        remove(self._watching)
        if self._counts is False:
            return

        def watch_output(_: nn.Module, inputs: Any, output: Any) -> None:
            for tensor in leaves(vars(output) if is_dataclass(output) else output):
                if tensor.requires_grad:
                    self._hooks.append(tensor.register_hook(self._masked))

        own = set(model.parameters())
        not_compiled: Any = torch.compiler.disable(watch_output)
        self._watching = [model.register_forward_hook(not_compiled)]
        for parameter in parameters_of(self._optimizer):
            if parameter not in own and parameter.requires_grad:
                self._watching.append(parameter.register_hook(self._masked))

    def _masked(self, gradient: Tensor) -> Tensor | None:
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
        remove(self._hooks)

    def weighed(self, outcome: Outcome, weight: float, last: bool, num_records: int) -> Tensor:
        """Return the loss whose gradients are added up. Does not wait for the device.

        The loss of ``outcome`` becomes 0 if nothing counts in it. ``weight`` is 0 for a filler.
        ConfigError C220 if only some passes have a count.
        """
        if self._counts is None:
            self._counts = outcome.count is not None
            if not self._counts:
                remove(self._watching)
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
        if self._sums is None or self._k is None:
            return
        count, num_records = self._parallel.sum_on_device(self._sums).unbind()
        self._sums = None
        factor = torch.where(count > 0, self._k * num_records / count, 0.0)
        own = list(map(local, gradients(self._optimizer)))
        dense = [gradient for gradient in own if not gradient.is_sparse]
        if dense:
            torch._foreach_mul_(dense, factor)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        for gradient in own:
            if gradient.is_sparse:
                gradient.mul_(factor)


def remove(hooks: list[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()
    hooks.clear()


@final
@dataclass
class Passes:
    """The forward and backward passes of a step, run kernel by kernel."""

    model: nn.Module  # wrapped by ``parallel``
    objective: Objective
    parallel: Parallel
    precision: Precision
    counts: CountWeights
    mark: Callable[[str], None]  # the clock's

    def __call__(self, batch: Batch, weight: float, last: bool) -> Outcome:
        """Add ``weight`` times the gradient of the loss. ``last`` marks the last pass of a step."""
        with self.parallel.accumulate(self.model, last):
            with self.precision.autocast():
                outcome = self.objective(self.model, batch)
            self.mark("forward")
            self.precision.backward(self.counts.weighed(outcome, weight, last, num_records(batch)))
            self.counts.end_pass()
        self.mark("backward")  # includes the exchange of gradients
        return outcome


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def gradients(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Return the gradients of all parameters that have one."""
    return [own.grad for own in parameters_of(optimizer) if own.grad is not None]


def clipping(
    model: nn.Module, optimizer: torch.optim.Optimizer, norm: float | None
) -> Callable[[], object] | None:
    """Return what scales the gradients down to a total ``norm``, without a synchronization.

    It sums in the order of the model, as ``clip_grad_norm_(model.parameters())`` of a loop does,
    and not in that of the optimizer's groups. Parameters of the objective come last.
    """
    if norm is None:
        return None
    order: dict[Tensor, int] = {own: place for place, own in enumerate(model.parameters())}
    own = sorted(parameters_of(optimizer), key=lambda own: order.get(own, len(order)))
    return partial(nn.utils.clip_grad_norm_, own, norm)


def drop_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Do what ``zero_grad(set_to_none=True)`` does, in 7 us for six parameters, not in 30."""
    if getattr(optimizer.zero_grad, "__func__", None) is not torch.optim.Optimizer.zero_grad:
        optimizer.zero_grad(set_to_none=True)  # a method of the user's, which may do more
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


@final
@dataclass
class Stepper:
    """The update of the weights at the end of a step."""

    plan: TrainPlan
    model: nn.Module  # the user's own, not what wraps it
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    precision: Precision
    average: Average | None
    counts: CountWeights
    setter: TorchSchedule | None = None  # sets the rates instead of ``schedule``
    owned: ObjectiveState | None = None  # weights and state of the objective

    def __post_init__(self) -> None:
        self.rate_changes = 0  # how often validations have changed the schedule
        self._plateau = self.schedule if isinstance(self.schedule, Plateau) else None
        self._keeper = self.setter or self._plateau
        # whether captured passes or phases have updated the weights; None: the end of the step does
        self.updated: bool | None = None
        self.infinite = infinite_buffers(self.model)
        self._clip = clipping(self.model, self.optimizer, self.plan.clip_norm)
        groups = self.optimizer.param_groups
        self._options = [copy.deepcopy({k: own[k] for k in own.keys() - SET}) for own in groups]
        self._rates = [group["lr"] for group in groups]
        self._position = (0, 1)  # the newest step, and the last one
        self._until = [group.get(UNTIL, 1.0) for group in groups]
        self._kept: dict[str, Tensor] = {}
        self._keep_buffers()

    @property
    def rate(self) -> float:
        """The newest learning rate of the first parameter group."""
        return self.rates_of(*self._position)[0]

    @property
    def rates_by_name(self) -> dict[str, float]:
        """The newest learning rates of all parameter groups, if there are several."""
        if len(self._rates) < 2:
            return {}
        names: list[str] = []
        for number, group in enumerate(self.optimizer.param_groups):
            name = group.get(NAME, f"group {number}")
            names.append(f"{name}, group {number}" if name in names else name)
        return dict(zip(names, self.rates_of(*self._position), strict=True))

    def rates_of(self, step: int, last_step: int) -> list[float]:
        """Return the learning rates of the groups at a step. Those of a ``setter`` are present."""
        if self.setter is not None:
            rates = self.setter.rates
        else:
            factor = self.schedule(step, last_step)
            rates = [rate * factor for rate in self._rates]
        ends = zip(rates, self._until, strict=True)
        return [0.0 if step >= until * last_step else rate for rate, until in ends]

    def share_rates(self) -> list[Tensor]:
        """Move the rates to the device, where a captured step reads them: float32. Return them."""
        for group in self.optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32, device=device)
            if "capturable" in group:
                group["capturable"] = True
        # torch would warn of steps that are not captured: the first ones and short batches
        self.optimizer._warned_capturable_if_run_uncaptured = True  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
        return [group["lr"] for group in self.optimizer.param_groups]

    def weights(self) -> dict[str, Any]:
        """Return the weights that are kept: the average's if there is one."""
        return (self.average or self.model).state_dict()

    def set_rates(self, progress: Progress, last_step: int) -> None:
        """Set the learning rates of the next step. Skipped steps take no place in the schedule."""
        if self.setter is not None:
            is_per_epoch = self.setter.per == "epoch"
            self.setter.move_to(progress.epoch if is_per_epoch else progress.scheduled)
            self.setter.set_options(self.optimizer.param_groups)
        rates = self.rates_of(progress.scheduled, last_step)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def follow(self, means: Mapping[str, float], parallel: Parallel) -> None:
        """Let the schedule follow a validation. All ranks take rank 0's value, to stay alike."""
        if self._plateau is not None:
            own = torch.tensor([self._plateau.value_of(means)], dtype=torch.float64)
            self.rate_changes += self._plateau.follow(float(parallel.gather(own)[0]))

    def forget_best(self) -> None:
        """Let the schedule compare no more with the validations so far."""
        if self._plateau is not None:
            self._plateau.forget_best()

    def update(self) -> bool:
        """Update the weights, or return False if the step was skipped. A graph captures this."""
        if self.owned is not None:
            self.owned.average_gradients()
        self.counts.rescale()
        changed = self.precision.step(self.optimizer, self._clip, self.plan.skip_bad)
        if changed:
            self.update_average()
        return changed

    def update_average(self) -> None:
        """Update an average that every step updates alike."""
        if self.average is not None and self.average.is_constant:
            self.average.update(self.average.decay)

    def step(self, progress: Progress, last_step: int) -> None:
        """Finish one step. N102 if more than ``max_missed`` in a row were missed."""
        self._position = (progress.scheduled, last_step)
        leaves_gradients = self.updated is None
        if self.updated is None:
            self.set_rates(progress, last_step)
            self.updated = self.update()
        if self.updated:
            progress.scheduled += 1
            progress.missed = 0
            if self.average is not None and not self.average.is_constant:
                self.average.update_after(progress.scheduled, last_step)
            self._keep_buffers()
        else:
            progress.missed += 1
            with torch.no_grad():
                for name, buffer in self._named_buffers().items():
                    kept = self._kept.get(name)
                    if kept is not None and kept.shape == buffer.shape:
                        buffer.copy_(kept)
            if progress.missed > self.plan.max_missed:
                what = f"the gradients of {progress.missed} steps in a row were not finite"
                raise NumericError(102, f"step {progress.step + 1}", what, FIX)
        if self.owned is not None:
            self.owned.share_buffers()
        if leaves_gradients:  # a captured step leaves none, and neither do phases
            drop_gradients(self.optimizer)
        self.updated = None

    def _keep_buffers(self) -> None:
        """Remember the buffers, for steps that are skipped after batch norm saw their records."""
        if self.plan.skip_bad:
            own = self._named_buffers()
            self._kept = {name: buffer.detach().clone() for name, buffer in own.items()}

    def _named_buffers(self) -> dict[str, Tensor]:
        named = dict(self.model.named_buffers())  # each time, since a model may replace its buffers
        if self.owned is not None:
            for place, module in self.owned.modules.items():
                named |= dict(module.named_buffers(place))
        return named

    def state_dict(self) -> dict[str, Any]:
        groups = zip(self._options, self.optimizer.param_groups, strict=True)
        return {
            "model": self.model.state_dict(),
            "average": self.average and self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            # what the optimizer itself has changed in its groups, as Prodigy does
            "in_groups": [
                {key: new[key] for key in old if not is_same(old[key], new[key])}
                for old, new in groups
            ],
            "precision": self.precision.state_dict(),
            "schedule": self._keeper and self._keeper.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``. If this run's rates and options differ, the user typed them."""
        saved_groups = state["optimizer"]["param_groups"]
        own_groups = self.optimizer.param_groups
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["average"] or state["model"])
        # the options come first, because they decide on which device the optimizer keeps its state
        in_groups = state.get("in_groups", [{}] * len(saved_groups))
        groups = [
            {**saved, **group, **own, "params": saved["params"]}
            for saved, group, own in zip(saved_groups, own_groups, in_groups, strict=True)
        ]
        self.optimizer.load_state_dict({**state["optimizer"], "param_groups": groups})
        self.precision.load_state_dict(state["precision"])
        if self._keeper is not None and state["schedule"] is not None:
            self._keeper.load_state_dict(state["schedule"])
        self._keep_buffers()


def all_finite(model: nn.Module, but: Mapping[str, bool]) -> bool:
    """Return whether all weights and buffers are finite. Reads the device once.

    ``but`` names buffers that may be infinite, with True if they may also be NaN.
    """
    checked = [weight.detach() for weight in model.parameters() if weight.is_floating_point()]
    for name, buffer in model.named_buffers():
        if name not in but and buffer.is_floating_point():
            checked.append(buffer)
        elif name in but and not but[name] and buffer.isnan().any():
            return False
    return are_finite(checked)


def infinite_buffers(model: nn.Module) -> dict[str, bool]:
    """Return buffers that are not finite from the start, as masks, and whether they hold NaN."""
    floats = {name: own for name, own in model.named_buffers() if own.is_floating_point()}
    return {name: bool(own.isnan().any()) for name, own in floats.items() if not are_finite([own])}


def are_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all elements are finite, from one norm. Reads the device once."""
    filled = [tensor for tensor in tensors if tensor.numel()]
    norms: list[Tensor] = []
    if shards := [tensor for tensor in filled if is_sharded(tensor)]:
        total: Any = torch.nn.utils.get_total_norm(shards, math.inf)
        norms.append(total.full_tensor())
    if plain := [tensor for tensor in filled if not is_sharded(tensor)]:
        norms.append(torch.nn.utils.get_total_norm(plain, math.inf))
    return all(math.isfinite(norm) for norm in norms)


def nonfinite_error(
    what: str, step: int, bad: PassPlace | None, parallel: Parallel
) -> PacelineError:
    """Return the error to raise at ``step``. All ranks call it together.

    The rank that met the first ``bad`` loss names its records (N101). Others point to it (P104).
    """
    mine = torch.tensor([math.inf if bad is None else bad.step], dtype=torch.float64)
    if int(torch.cat(parallel.gather(mine)).argmin()) != parallel.rank:
        fix = "the rank that met it first names the records"
        return DistributedError(104, f"step {step}", what, fix)
    # A weight that has become infinite stays so, whatever steps are left out.
    if bad is None or "weight" in what:
        return NumericError(101, f"step {step}" if bad is None else bad.where, what, FIX)
    return NumericError(101, bad.where, what, f"leave such steps out (on_nan=skip), {FIX}")
