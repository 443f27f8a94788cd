"""Evaluate a model: one pass over the validation data that does not change the weights."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor, nn

from framework.contracts.loader import Clock, Loader
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.span import Span
from framework.contracts.training import Objective, PredictionMetrics
from framework.system.rng import kept_generators
from framework.train.metrics import Results, Tally
from framework.train.parts import Parts

VAL = "val"


class SetResults(NamedTuple):
    """The validation of one set."""

    split: str  # ``val``, or ``val.NAME`` of one of several sets
    means: dict[str, float]
    arrays: Mapping[str, Tensor]
    records_per_s: float
    spans: dict[str, Span]


def splits_of(val: Loader | Mapping[str, Loader] | None) -> dict[str, Loader]:
    """Return the loader of each validation set by the name of its split."""
    if val is None:
        return {}
    if isinstance(val, Mapping):
        return {f"{VAL}.{name}": loader for name, loader in val.items()}
    return {VAL: val}


def validated(parts: Parts, splits: Mapping[str, Loader], model: nn.Module) -> list[SetResults]:
    """Evaluate ``model`` on every validation set."""
    results: list[SetResults] = []
    for split, loader in splits.items():
        start = time.perf_counter()
        means, count, arrays = evaluate(
            model,
            loader,
            parts.objective,
            parts.precision,
            parts.val_clock,
            parts.parallel,
            parts.metrics,
        )
        records_per_s = count / (time.perf_counter() - start)
        spans = parts.val_clock.spans()
        results.append(SetResults(split, means, arrays, records_per_s, spans))
    return results


def means_of_sets(results: Sequence[SetResults]) -> dict[str, float]:
    """Return all means by name; of several sets, each begins with the set's name and a dot."""
    means: dict[str, float] = {}
    for result in results:
        prefix = prefix_of(result.split)
        means |= {f"{prefix}{name}": mean for name, mean in result.means.items()}
    return means


def prefix_of(split: str) -> str:
    """Return what the names of a split's means begin with."""
    _, dot, name = split.partition(".")
    return f"{name}{dot}"


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Loader,
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
    with kept_generators(parallel.device), closing(loader.epoch(0)) as batches:
        for batch, weight, _ in batches:
            with precision.autocast():
                outcome = objective(model, batch)
            clock.mark("forward")
            # A weight of 0 marks a filler: its records do not count.
            if metrics is not None and weight > 0 and outcome.predictions is not None:
                metrics.add(outcome.predictions)
            tally.add(outcome, counts=weight > 0, step=0, index=None)
            clock.mark("report")
    results = tally.results(parallel.total)
    if metrics is None:
        return results
    return _with_metrics(results, metrics.results())


def _with_metrics(results: Results, metrics: Mapping[str, Tensor]) -> Results:
    numbers = {name: float(value) for name, value in metrics.items() if not value.dim()}
    arrays = {name: value for name, value in metrics.items() if value.dim()}
    means = {**results.means, **numbers}
    return results._replace(means=means, arrays={**results.arrays, **arrays})
