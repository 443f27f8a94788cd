"""Contracts for training: objectives, schedules, reports, sinks and checkpoints."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.span import RankReport, Span
from framework.errors import say


@dataclass(slots=True, eq=False)  # not frozen, which costs a microsecond per step
class Outcome:
    """The result of an objective. Tensors of another form raise ConfigError C220.

    Attributes:
        loss: The mean over what counts: 0-d.
        sums: Metrics by name, as tensors whose elements add up over what counts: 0-d, or [B] with
            one value per record, which saves a sum in every step. An array of two or more
            dimensions, such as a confusion matrix, adds up over batches and ranks as it is, and is
            reported in ``Report.arrays``.
        count: What counts, such as pixels with a class or tokens, which weighs each pass: an
            integer, or an integer tensor on the device, which nobody waits for. None: the records.
            All passes of a run have one, or none has.
        totals: For metrics that are no means over records, such as a mean IoU: tensors of any shape
            on the device of ``loss``, which add up over batches and ranks. ``MakesMetrics`` makes
            numbers of them.
        losses: The parts of the loss by name, logged beside it: 0-d, each a mean over what counts.
        predictions: What ``metrics=...`` compares: what the model says and what is right, both with
            the records first. A classification gives probabilities [B, classes, ...] or classes
            [B, ...], and the right classes, int64 [B, ...]. An objective may leave them out in
            training, where nobody reads them.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    count: int | Tensor | None = None
    totals: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    losses: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    predictions: tuple[Tensor, Tensor] | None = None


class Objective(Protocol):
    """The loss to minimize and the metrics beside it: sums and counts, never means of means."""

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome: ...

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        """Return whether the validation means ``new`` are better than ``old``."""
        ...


@runtime_checkable
class HasPhases(Protocol):
    """A capability of an objective: a step trains parts of the model in turn, as a GAN does.

    Each phase takes all passes of a step and updates its part. Afterwards the gradients of all
    parameters are dropped, since a phase leaves some in parts that are not its own.

    Attributes:
        phases: Names of ``optim.parts``, in the order in which a step takes them. Each part has
            one.
    """

    phases: Sequence[str]

    def __call__(self, model: nn.Module, batch: Batch, phase: str | None = None) -> Outcome:
        """Return the loss of a phase. It is None in validation, and when the model is tried.

        All phases of a pass have the same ``count``, and names of their own for sums and losses.
        """
        ...


@runtime_checkable
class MakesMetrics(Protocol):
    """A capability of an objective, which it needs if its outcomes have ``totals``."""

    def metrics(self, totals: Mapping[str, Tensor]) -> Mapping[str, float]:
        """Return metrics by name of the ``totals`` of all records since the last report.

        They are summed over the ranks: float64 on the host, and 0 if there was no record.
        """
        ...


@runtime_checkable
class StartsFromData(Protocol):
    """A capability of a module: it computes its first weights from training records.

    All ranks do so with the same records, before the model is wrapped and compiled.
    """

    num_start_records: int  # how many training records it wants. It gets fewer if there are fewer

    def start_from(self, inputs: Iterable[Tensor]) -> None:
        """Set the weights. ``inputs`` are what reaches the module in evaluation, in batches."""


# The learning rate over the steps: (step, total_steps) -> the factor on the optimizer's own rate.
Schedule = Callable[[int, int], float]


@dataclass(frozen=True)
class Report:
    """One line of the log. What was not measured is empty or None."""

    split: str  # ``train``, ``val``, or ``val.NAME`` of one of several validation sets
    step: int  # optimizer steps of the run so far
    epoch: int  # counted from 1
    means: Mapping[str, float]  # loss and metrics, averaged over records
    records_per_s: float  # over all ranks
    spans: Mapping[str, Span] = field(default_factory=dict[str, Span])  # since the last line
    learning_rate: float | None = None  # of the last step, of the first group
    rates: Mapping[str, float] = field(default_factory=dict[str, float])  # of several groups
    epoch_left: int | None = None  # records until the end of the epoch
    left_s: float | None = None  # seconds until the end of the run at its pace so far
    stages_s: Mapping[str, float] = field(default_factory=dict[str, float])  # threads', per step
    ready: float | None = None  # batches that were ready when one was requested
    skipped: int = 0  # steps of the run so far that left the weights unchanged
    usage: Mapping[str, float] = field(default_factory=dict[str, float])  # of the machine
    content: Mapping[str, float] = field(default_factory=dict[str, float])  # shares of batches
    slow_records: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as ``slow_block``
    # With ``workers.num=auto``: the present number of workers and how far they read ahead, and the
    # ``decisions`` since the last line.
    tuning: Mapping[str, Any] = field(default_factory=dict[str, Any])
    arrays: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])  # metrics, on the host
    ranks: RankReport | None = None  # what all ranks measured; None if there is one
    # Of a validation: metrics of the best one so far, this one included, named as in ``Moment``.
    best: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class Moment:
    """What a Watcher sees. What does not belong to the call is empty or None."""

    step: int  # optimizer steps of the run so far
    epoch: int  # counted from 1
    train_s: float  # seconds of training, over all parts of a resumed run
    run_dir: Path | None = None  # None if nothing is saved
    report: Report | None = None  # of ``after_report``
    # Of ``after_validation``: every metric by name, as in ``accuracy``. With several validation
    # sets the name begins with the set's, as in ``clean.accuracy``.
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    is_best: bool = False  # of ``after_validation``: whether it is the best so far
    path: Path | None = None  # of ``after_save``: the state; None if the disk refused it
    # Of ``at_end``: ``finished``, or ``interrupted`` by a signal; and why the run ends early.
    status: str = ""
    reason: str = ""


@runtime_checkable
class Watcher(Protocol):
    """Looks at a run, and may end it. Inherit from it, and write the methods that you need.

    Only rank 0 calls its watchers. The first three methods may return a reason to stop, a text:
    all ranks then end the run as finished, after the same step. A reason after a validation counts
    at once, any other within 16 steps. An exception ends the run with an error.
    """

    def after_report(self, moment: Moment) -> str | None:
        """Look at the run after each report of training, every ``report_every`` steps."""

    def after_validation(self, moment: Moment) -> str | None:
        """Look at the run after each validation, before the state is saved."""

    def after_save(self, moment: Moment) -> str | None:
        """Look at the run after each saved state."""

    def at_end(self, moment: Moment) -> None:
        """Look at the run when it ends without having failed."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs: tensors and plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state``."""


@dataclass(frozen=True)
class RunContext:
    """What a Sink is given at runtime."""

    run_dir: Path
    total_steps: int
    epochs: int
    start_step: int = 0  # of a resumed run, which replaces what was logged after this step
    sample: Batch = field(default_factory=dict[str, Tensor])  # its label maps have colors
    say: Callable[[str], None] = say  # prints a note or a warning, from any thread
    has_ended: Callable[[], bool] = lambda: False  # whether a watcher has ended the run early


class Sink(Protocol):
    """Where reports go. Only rank 0 has sinks."""

    def write(self, report: Report) -> None: ...

    def flush(self) -> None:
        """Put on disk what was written. Called before a state is saved."""

    def close(self) -> None:
        """End the sink, after the last report."""
