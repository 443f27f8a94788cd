"""Contracts for training: objectives, schedules, reports, sinks and checkpoints."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from framework.contracts.batch import Batch
from framework.contracts.span import Span


@dataclass(slots=True, eq=False)  # not frozen: that costs a microsecond at every step
class Outcome:
    """What an objective found: ``loss`` (mean over ``count`` records, 0-d), ``sums`` (tensors whose elements add up over the records:
    0-d, or a value per record, which saves summing at every step). A tensor of another form is refused: ConfigError C220.
    """

    loss: Tensor
    sums: dict[str, Tensor]
    count: int


class Objective(Protocol):
    """What is to be made small, and what is counted beside it: sums and counts, never means of means."""

    def __call__(self, model: nn.Module, batch: Batch) -> Outcome: ...

    def better(self, new: Mapping[str, float], old: Mapping[str, float]) -> bool:
        """Whether validation means ``new`` are better than ``old``."""
        ...


class Schedule(Protocol):
    """The learning rate over the steps. Pure: the factor on the optimizer's own rate at ``step`` of ``total_steps``."""

    def __call__(self, step: int, total_steps: int) -> float: ...


@dataclass(frozen=True)
class Report:
    """One line of the log. ``means``: loss and metrics per record; ``spans``: of the steps since the last line.

    ``epoch_left``: records to the end of the epoch; ``left_s``: seconds to the end of the run, at its pace so far. ``stages_s``: where
    reading's time went, in thread-seconds per step; ``ready``: batches that lay ready when one was asked for; ``usage``: of the machine.
    These three are empty where nobody measures them. ``skipped``: steps of the run so far that left the weights as they were.
    """

    split: str
    step: int
    epoch: int
    means: Mapping[str, float]
    records_per_s: float
    spans: Mapping[str, Span] = field(default_factory=dict[str, Span])
    learning_rate: float | None = None
    epoch_left: int | None = None
    left_s: float | None = None
    stages_s: Mapping[str, float] = field(default_factory=dict[str, float])
    ready: float | None = None
    skipped: int = 0
    usage: Mapping[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class RunContext:
    """What a Sink is given at runtime. ``start_step`` > 0 in a resumed run: what was logged after it is void. ``sample``: records to look
    at; its label maps are pictures, a color for each class.
    """

    run_dir: Path
    total_steps: int
    epochs: int
    start_step: int = 0
    sample: Batch = field(default_factory=dict[str, Tensor])


class Sink(Protocol):
    """Where reports go. Only rank 0 has sinks."""

    def write(self, report: Report) -> None: ...

    def flush(self) -> None:
        """Have the disk hold what was written: a state is about to be saved, from which another run may go on."""
        ...

    def close(self) -> None: ...


class Checkpoints(Protocol):
    """Where the state of a run is kept."""

    def is_late(self) -> bool:
        """Whether it is time for a save."""
        ...

    def save(
        self,
        step: int,
        state: dict[str, Any],
        weights: dict[str, Any] | None,
        best: bool,
        final: bool,
    ) -> None:
        """Publish ``state`` for resuming, and ``weights`` (a plain ``state_dict``), where given, as last, and as best where they are.

        ResourceError where the disk refuses, and it is the ``final`` save of a run.
        """
        ...
