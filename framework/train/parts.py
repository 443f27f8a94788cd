"""The parts that a Trainer runs with, and the pass of a validation, which changes no weights."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from framework.contracts import class_labels, data
from framework.contracts.batch import Batch, mapped, num_records, taken
from framework.contracts.loader import Clock, Loader
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective, Report, Schedule
from framework.errors import say
from framework.schedule.torch_schedule import TorchSchedule
from framework.system.rng import kept_generators
from framework.train import checkpoint, cuda_graph, noise, objective_state, weights
from framework.train.metrics import PassPlace, PassResults, Results, TrainPlan
from framework.train.watching import Goal, Watching

if TYPE_CHECKING:
    from framework.train.torch_metrics import TorchMetrics  # an extra

VAL = "val"


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that a Trainer needs, ready to use."""

    plan: TrainPlan
    model: nn.Module  # on its device, and wrapped by ``parallel``
    objective: Objective
    optimizer: torch.optim.Optimizer  # over the parameters of ``model``, and those of ``owned``
    schedule: Schedule
    train: Loader
    val: Loader | Mapping[str, Loader] | None  # or several by name; None: no validation
    parallel: Parallel
    precision: Precision
    clock: Clock
    val_clock: Clock
    checkpoints: checkpoint.CheckpointFolder | None = None  # None: nothing is saved
    setter: TorchSchedule | None = None  # sets the learning rates instead of ``schedule``
    # The optimizer of each phase of ``objective``, in their order. All are in ``optimizer``, and
    # ``model`` is not wrapped. Empty: each pass trains everything.
    phases: Mapping[str, torch.optim.Optimizer] = field(default_factory=dict)  # pyright: ignore[reportUnknownVariableType]
    seed: int = 0  # of the run, for ``record_noise``
    freeze: weights.Freeze | None = None  # None: every parameter that needs a gradient is trained
    owned: objective_state.ObjectiveState | None = None  # weights and state of ``objective``
    average: weights.Average | None = None  # None: the weights themselves are evaluated and kept
    stop: Callable[[], bool] = lambda: False  # called after every step; the ranks agree on it
    metrics: "TorchMetrics | None" = None  # further metrics of the validation
    best: Goal | None = None  # what the best validation has most of; None: the objective decides
    watching: Watching | None = None  # watchers, which may end the run
    recorder: cuda_graph.CudaRecorder | None = None  # captures steps as CUDA graphs
    sums_records: bool = False  # whether only a sum over ranks tells the records of a step
    say: Callable[[str], None] = say  # prints a note or a warning

    def switch_to_training(self) -> None:
        """Switch the model to training, except for batch norm that is frozen."""
        self.model.train()
        if self.freeze is not None:
            self.freeze.hold()

    def splits(self) -> dict[str, Loader]:
        """Return the loader of each validation set by the name of its split."""
        if isinstance(self.val, Mapping):
            return {f"{VAL}.{name}": loader for name, loader in self.val.items()}
        return {} if self.val is None else {VAL: self.val}


def validated(parts: Parts, splits: Mapping[str, Loader], model: nn.Module) -> list[Report]:
    """Evaluate ``model`` on every validation set. The next one begins to be read meanwhile."""
    results: list[Report] = []
    following = [*list(splits.values())[1:], None]
    for (split, loader), after in zip(splits.items(), following, strict=True):
        if after is not None:
            after.expect(0, 0, after.num_steps)
        start = time.perf_counter()
        own = (parts.objective, parts.precision, parts.val_clock, parts.parallel, parts.metrics)
        means, count, arrays = evaluate(model, loader.epoch(0), *own)
        records_per_s = count / (time.perf_counter() - start)
        spans = parts.val_clock.spans()
        results.append(Report(split, 0, 0, means, records_per_s, spans, arrays=arrays))
    return results


def named_means(results: Iterable[Report]) -> dict[str, float]:
    """Return the means of all splits by name; of several sets as in ``clean.loss``."""
    means: dict[str, float] = {}
    for result in results:
        _, dot, own = result.split.partition(".")
        means |= {f"{own}{dot}{name}": mean for name, mean in result.means.items()}
    return means


def is_better(
    parts: Parts, splits: Mapping[str, Loader], new: Mapping[str, float], old: Mapping[str, float]
) -> bool:
    """Return whether a validation is better than the best so far, which is empty at first.

    A metric decides, or the objective by the means of the first set. A number is better than NaN.
    """
    if parts.best is not None:
        return parts.best.better(new, old) or not old
    if not old:
        return True
    _, dot, name = next(iter(splits)).partition(".")
    prefix = f"{name}{dot}"  # of the names of its means, if there are several sets
    new, old = (
        {name.removeprefix(prefix): means[name] for name in means if name.startswith(prefix)}
        for means in (new, old)
    )
    if is_nan(new, "loss") != is_nan(old, "loss"):
        return is_nan(old, "loss")
    if parts.objective.better(new, old):
        return True
    # No comparison with NaN holds: a metric that was NaN once would stay the best for ever.
    was_nan = any(is_nan(old, name) and not is_nan(new, name) for name in new)
    return was_nan and not parts.objective.better(old, new)


def is_nan(means: Mapping[str, float], name: str) -> bool:
    return math.isnan(means.get(name, 0.0))


@torch.no_grad()
def evaluate(
    model: nn.Module,
    passes: data.MicroBatches,
    objective: Objective,
    precision: Precision,
    clock: Clock,
    parallel: Parallel,
    metrics: "TorchMetrics | None" = None,
) -> Results:
    """Return the mean loss and the metrics of the records of all ranks, and their number.

    The model is left in evaluation mode. The random generators are restored afterwards.
    """
    model.eval()
    pass_results = PassResults(objective, drops_bad=False)
    clock.skip()  # The time since the last validation does not count.
    with (
        objective_state.evaluating(objective),
        kept_generators(parallel.device),
        noise.noise_of(noise.VALIDATION),
        closing(passes) as batches,
    ):
        for batch, weight, _ in batches:
            try:
                with precision.autocast():
                    outcome = objective(model, batch)
            except (IndexError, RuntimeError) as error:
                class_labels.raise_if_label(error, batch, "validation data")
                raise
            clock.mark("forward")
            # A weight of 0 marks a filler: its records do not count.
            if metrics is not None and weight > 0 and outcome.predictions is not None:
                metrics.add(outcome.predictions)
            pass_results.add(outcome, num_records(batch), weight, PassPlace(0, None))
            clock.mark("report")
    results = pass_results.results(parallel.total)
    if metrics is not None:
        for name, value in metrics.results().items():
            if value.dim():
                results.arrays[name] = value
            else:
                results.means[name] = float(value)
    return results


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
    """A model in evaluation mode that gives outputs it had before: of a batch, or of a record."""

    def __init__(self, outputs: list[Any], num_records: int, record: int | None = None) -> None:
        super().__init__()
        self._outputs = iter(outputs)
        self._num_records = num_records
        self._record = record
        self.eval()

    def forward(self, *_: Any, **__: Any) -> Any:
        def cut(tensor: Tensor) -> Tensor:
            if self._record is None or not tensor.dim() or len(tensor) != self._num_records:
                return tensor
            return tensor[self._record : self._record + 1]

        return mapped(next(self._outputs), cut)


def record_losses(
    objective: Objective, outputs: list[Any], batch: Batch, training: bool = False
) -> Tensor:
    """Return the loss of each record of a batch, float64 [B] on the host, from the model's outputs.

    Whatever the objective raises for an output that cannot be cut is raised here.
    """
    num_records = len(batch["index"])
    losses: list[Tensor] = []
    for record in range(num_records):
        model = GivenOutputs(outputs, num_records, record).train(training)
        losses.append(objective(model, taken(batch, torch.tensor([record]))).loss)
    return torch.stack(losses).double().cpu()
