"""Evaluate a model: one pass over the validation data that does not change the weights."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch, mapped, num_records, taken
from framework.contracts.class_labels import raise_if_label
from framework.contracts.data import MicroBatches
from framework.contracts.loader import Clock, Loader
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Objective, PredictionMetrics, Report
from framework.system.rng import kept_generators
from framework.train.metrics import PassPlace, Results, Tally
from framework.train.objective_state import evaluating
from framework.train.parts import Parts

VAL = "val"


def splits_of(val: Loader | Mapping[str, Loader] | None) -> dict[str, Loader]:
    """Return the loader of each validation set by the name of its split."""
    if val is None:
        return {}
    if isinstance(val, Mapping):
        return {f"{VAL}.{name}": loader for name, loader in val.items()}
    return {VAL: val}


def validated(parts: Parts, splits: Mapping[str, Loader], model: nn.Module) -> list[Report]:
    """Evaluate ``model`` on every validation set."""
    results: list[Report] = []
    following = iter(splits.values())
    next(following, None)
    for split, loader in splits.items():
        if (after := next(following, None)) is not None:
            after.expect(0, 0, after.num_steps)
        start = time.perf_counter()
        means, count, arrays = evaluate(
            model,
            loader.epoch(0),
            parts.objective,
            parts.precision,
            parts.val_clock,
            parts.parallel,
            parts.metrics,
        )
        records_per_s = count / (time.perf_counter() - start)
        spans = parts.val_clock.spans()
        results.append(Report(split, 0, 0, means, records_per_s, spans, arrays=arrays))
    return results


def means_of_sets(results: Sequence[Report]) -> dict[str, float]:
    """Return all means by name; of several sets, each begins with the set's name and a dot."""
    means: dict[str, float] = {}
    for result in results:
        prefix = prefix_of(result.split)
        means |= {f"{prefix}{name}": mean for name, mean in result.means.items()}
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
    prefix = prefix_of(next(iter(splits)))
    new, old = (
        {name.removeprefix(prefix): means[name] for name in means if name.startswith(prefix)}
        for means in (new, old)
    )
    if _is_nan(new, "loss") != _is_nan(old, "loss"):
        return _is_nan(old, "loss")
    if parts.objective.better(new, old):
        return True
    # No comparison with NaN holds: a metric that was NaN once would stay the best for ever.
    was_nan = any(_is_nan(old, name) and not _is_nan(new, name) for name in new)
    return was_nan and not parts.objective.better(old, new)


def warn_of_nan(
    parts: Parts, step: int, new: Mapping[str, float], old: Mapping[str, float]
) -> None:
    """Warn of a validation whose loss is NaN, unless that of the validation before it was, too."""
    losses = [name for name in new if name == "loss" or name.endswith(".loss")]
    names = [name for name in losses if _is_nan(new, name) and not _is_nan(old, name)]
    if names:
        what = f"the {', '.join(names)} of the validation after step {step} is NaN"
        parts.say(f"warning: {what}; look at the validation data, or lower optim.lr")


def _is_nan(means: Mapping[str, float], name: str) -> bool:
    return math.isnan(means.get(name, 0.0))


def prefix_of(split: str) -> str:
    """Return what the names of a split's means begin with."""
    _, dot, name = split.partition(".")
    return f"{name}{dot}"


@torch.no_grad()
def evaluate(
    model: nn.Module,
    passes: MicroBatches,
    objective: Objective,
    precision: Precision,
    clock: Clock,
    parallel: Parallel,
    metrics: PredictionMetrics | None = None,
) -> Results:
    """Return the mean loss and the metrics of the records of all ranks, and their number.

    The model is left in evaluation mode; the caller switches it back. The random generators are
    restored afterwards, so that learning does not depend on how often a run validates.
    """
    model.eval()
    tally = Tally(objective, drops_bad=False)
    clock.skip()  # The time since the last validation does not count.
    with (
        evaluating(objective),
        kept_generators(parallel.device),
        closing(passes) as batches,
    ):
        for batch, weight, _ in batches:
            try:
                with precision.autocast():
                    outcome = objective(model, batch)
            except (IndexError, RuntimeError) as error:
                raise_if_label(error, batch, "validation data")
                raise
            clock.mark("forward")
            # A weight of 0 marks a filler: its records do not count.
            if metrics is not None and weight > 0 and outcome.predictions is not None:
                metrics.add(outcome.predictions)
            tally.add(outcome, num_records(batch), weight, PassPlace(0, None))
            clock.mark("report")
    results = tally.results(parallel.total)
    for name, value in ({} if metrics is None else metrics.results()).items():
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
