"""Metrics of TorchMetrics over the records of all ranks."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torchmetrics import Metric, classification
from torchmetrics.utilities import dim_zero_cat

from framework.contracts.parallel import Parallel
from framework.errors import ConfigError, listed, say, words_of
from framework.system.user_code import raise_if_user_error
from framework.train.checkpoint import of_all_ranks

# What is undefined for a class without records. TorchMetrics takes it as 0, or warns.
NEEDS_RECORDS = (
    classification.MulticlassAccuracy,
    classification.MulticlassAUROC,
    classification.MulticlassAveragePrecision,
    classification.MulticlassRecall,
)
# What TorchMetrics says of classes without records
OF_ABSENT = ("No positive samples", "Average precision score for one or more classes")


@final
class TorchMetrics:
    """Metrics by name, which see the predictions of this rank.

    Their states are exchanged as they are when a validation ends, so that results are those of one
    rank that has seen all records. The macro average of a metric that is undefined for a class
    without records is the mean over the classes that have some, and a note names the others by
    ``classes``. ``say`` prints what a metric warns of, once.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any],
        parallel: Parallel,
        say: Callable[[str], None] = say,
        classes: Sequence[str] = (),
    ) -> None:
        self._metrics: dict[str, Metric] = {}
        self.names = list(metrics)
        self._num_added = 0  # batches in which something counts
        self._parallel = parallel
        self._say = say
        self._notes: set[str] = set()
        self._classes = classes
        self._counts: dict[str, Tensor] = {}  # records per class of a macro average, on the device
        for name, metric in metrics.items():
            where = f"metrics.{name}"
            if not isinstance(metric, Metric):
                what = f"makes a {type(metric).__name__}, not a torchmetrics.Metric"
                fix = "name a class of TorchMetrics, or inherit from Metric"
                raise ConfigError(332, where, what, fix)
            # a rank gathers once for each state, and lists that stay lists differ in length
            of_ours = type(metric)._sync_dist is Metric._sync_dist  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
            for state, reduction in metric._reductions.items():  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
                is_list = isinstance(metric._defaults[state], list)  # pyright: ignore[reportPrivateUsage]  # noqa: SLF001
                if parallel.world_size > 1 and of_ours and is_list and reduction != dim_zero_cat:
                    what = f"keeps {state} in a way that cannot be joined over ranks"
                    raise ConfigError(332, where, what, "leave it out, or train on one rank")
            metric.dist_sync_fn = lambda state, group=None: gathered(state, parallel)  # noqa: ARG005
            metric.distributed_available_fn = lambda: parallel.world_size > 1
            self._metrics[name] = metric.to(parallel.device)
            if isinstance(metric, NEEDS_RECORDS) and metric.average == "macro":
                metric.average = "none"
                self._counts[name] = torch.zeros(metric.num_classes or 0, device=parallel.device)

    def add(self, predictions: Sequence[Tensor], quiet: bool = False) -> None:
        """Show a batch to the metrics, unless nothing counts. Does not wait for the device."""
        if not len(predictions[1]):
            return
        self._num_added += 1
        for name, metric in self._metrics.items():
            self._called(name, lambda metric=metric: metric.update(*predictions), quiet)
        labels = predictions[1].long().flatten()
        for name, counts in self._counts.items():
            own: Any = self._metrics[name]
            counted = (labels >= 0) & (labels < len(counts))
            if own.ignore_index is not None:
                counted &= labels != own.ignore_index
            counts.scatter_add_(0, torch.where(counted, labels, 0), counted.to(counts.dtype))

    def results(self) -> dict[str, Tensor]:
        """Return the results on the host, NaN for each metric if nothing on any rank counts."""
        num_added = torch.tensor([self._num_added], dtype=torch.float64)
        self._num_added = 0
        if not self._parallel.total(num_added).item():
            return {name: torch.tensor(torch.nan) for name in self._metrics}
        results: dict[str, Tensor] = {}
        for name, metric in self._metrics.items():
            results |= _named(name, self._called(name, metric.compute))
            metric.reset()
        for name, own in self._counts.items():
            has = self._parallel.total(own.double().cpu()) > 0
            absent = (~has).nonzero().flatten().tolist()
            if absent and has.any():
                known = dict(enumerate(self._classes))
                names = listed([known.get(number, str(number)) for number in absent])
                what = f"the mean over the {int(has.sum())} classes that have records"
                self._note(f"note: metrics.{name}: {what}, without {names}")
            results[name] = results[name][has.to(own.device)].mean()
            own.zero_()
        return {name: value.detach().cpu() for name, value in results.items()}

    def tried(self, predictions: tuple[Tensor, Tensor] | None) -> dict[str, float]:
        """Return the numbers of a few records, or one of zeros, on this rank. ConfigError C332."""
        if predictions is None:
            what = "the objective predicts nothing that metrics could compare"
            fix = "return Outcome(..., predictions=(what the model says, what is right))"
            raise ConfigError(332, f"metrics = {', '.join(self._metrics)}", what, fix)
        own = [part.to(self._parallel.device) for part in predictions]
        if not len(own[1]):
            own = [part.new_zeros(1, *part.shape[1:]) for part in own]
        self.add(own, quiet=True)
        self._num_added = 0
        results: dict[str, Tensor] = {}
        for name, metric in self._metrics.items():
            metric.sync_on_compute, syncs = False, metric.sync_on_compute
            results |= _named(name, self._called(name, metric.compute, quiet=True))
            metric.sync_on_compute = syncs
            metric.reset()
        for name, counts in self._counts.items():
            results[name] = results[name][counts > 0].mean()
            counts.zero_()
        return {name: float(value) for name, value in results.items() if not value.dim()}

    def _note(self, text: str) -> None:
        if text not in self._notes:
            self._notes.add(text)
            self._say(text)

    def higher_is_better(self, name: str) -> bool | None:
        """Return the direction of a metric; None if it does not say any, or is none of these."""
        return self._metrics[name].higher_is_better if name in self._metrics else None

    def _called(self, name: str, action: Callable[[], Any], quiet: bool = False) -> Any:
        """Do something with a metric. ConfigError C332 for its errors, a note for its warnings."""
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                result = action()
        except Exception as error:
            raise_if_user_error(error, about=f"metrics.{name}")
            if not isinstance(error, RuntimeError | ValueError | TypeError | IndexError):
                raise
            what = f"does not fit what the objective predicts ({words_of(error)})"
            raise ConfigError(332, f"metrics.{name}", what, "correct its arguments") from error
        for warning in [] if quiet else caught:
            words = " ".join(str(warning.message).split())
            of_absent = name in self._counts and words.startswith(OF_ABSENT)
            if "before the ``update``" not in words and not of_absent:
                self._note(f"note: metrics.{name}: {words}")
        return result


def _named(name: str, value: Any) -> dict[str, Tensor]:
    if isinstance(value, Mapping):
        named: dict[str, Tensor] = {}
        for key, item in value.items():
            named |= _named(f"{name}_{key}", item)
        return named
    if isinstance(value, int | float):
        value = torch.tensor(value, dtype=torch.float64)
    if not isinstance(value, Tensor):
        what = f"is a {type(value).__name__}, neither a number nor an array"
        raise ConfigError(332, f"metrics.{name}", what, "choose another")
    return {name: value}


def gathered(state: Tensor, parallel: Parallel) -> list[Tensor]:
    """Return a tensor of each rank, on this rank's device. Sizes may differ.

    A rank without records has an empty tensor of any type, and takes the others' type.
    """
    tensors: list[Tensor] = of_all_ranks(state.detach().contiguous(), parallel)
    filled = [own for own in tensors if own.numel()]
    if filled:
        empty = filled[0][:0] if filled[0].dim() else filled[0]
        tensors = [own if own.numel() else empty for own in tensors]
    return [own.to(state.device) for own in tensors]
