"""The parts that a Trainer runs with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import nn

from framework.contracts.loader import Clock, Loader
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import (
    Objective,
    PredictionMetrics,
    Schedule,
)
from framework.errors import say
from framework.schedule.torch_schedule import TorchSchedule
from framework.train.checkpoint import CheckpointFolder
from framework.train.cuda_graph import CudaRecorder
from framework.train.ema import Average
from framework.train.freeze import Freeze
from framework.train.metrics import TrainPlan
from framework.train.objective_state import ObjectiveState
from framework.train.watching import Goal, Watching


def never() -> bool:
    """Return False: the default of ``Parts.stop``."""
    return False


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
    checkpoints: CheckpointFolder | None = None  # None: nothing is saved
    setter: TorchSchedule | None = None  # sets the learning rates instead of ``schedule``
    freeze: Freeze | None = None  # None: every parameter that needs a gradient is trained
    owned: ObjectiveState | None = None  # weights and state of ``objective``
    average: Average | None = None  # None: the weights themselves are evaluated and kept
    stop: Callable[[], bool] = never  # called after every step; the ranks agree on the answer
    metrics: PredictionMetrics | None = None  # further metrics of the validation
    best: Goal | None = None  # what the best validation has most of; None: the objective decides
    watching: Watching | None = None  # watchers, which may end the run
    recorder: CudaRecorder | None = None  # captures steps as CUDA graphs
    sums_records: bool = False  # whether only a sum over ranks tells the records of a step
    say: Callable[[str], None] = say  # prints a note or a warning

    def at_step(self, step: int) -> "Parts":
        """Return the parts with what is frozen after ``step`` steps. All ranks call it together."""
        if self.freeze is None:
            return self
        return replace(self, model=self.freeze.move_to(step, self.model))

    def is_late(self) -> bool:
        """Return whether it is time to save. Only rank 0 knows."""
        if self.checkpoints is None or self.parallel.rank != 0:
            return False
        return self.checkpoints.is_late()

    def switch_to_training(self) -> None:
        """Switch the model to training, except for batch norm that is frozen."""
        self.model.train()
        if self.freeze is not None:
            self.freeze.hold()
