"""The parts that a Trainer runs with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import nn

from framework.contracts.loader import Clock, Loader
from framework.contracts.parallel import Parallel, Precision
from framework.contracts.training import Checkpoints, Objective, Schedule
from framework.train.cuda_graph import Recorder
from framework.train.ema import Average
from framework.train.metrics import TrainPlan


def never() -> bool:
    """Return False: the default of ``Parts.stop``."""
    return False


@final
@dataclass(frozen=True, kw_only=True)
class Parts:
    """Everything that a Trainer needs, ready to use.

    Attributes:
        plan: How long to train, and how often to report, validate and save.
        model: On its device, and wrapped by ``parallel``.
        objective: Computes the loss and the metrics of a batch.
        optimizer: Over the parameters of ``model``.
        schedule: The factor on the learning rate at each step.
        train: Delivers the training batches.
        val: Delivers the validation batches; None to train without validation.
        parallel: How many replicas there are, and how they talk.
        precision: With which numbers a step computes.
        clock: Measures the training steps.
        val_clock: Measures the validation batches.
        checkpoints: Keeps the states; None to save nothing.
        average: The moving average of the weights that is evaluated and kept; None for the weights
            themselves.
        stop: Asked after every step whether to stop. The ranks agree on the answer.
        recorder: Captures steps as CUDA graphs; None to run them kernel by kernel.
        say: Prints a note or a warning.

    """

    plan: TrainPlan
    model: nn.Module
    objective: Objective
    optimizer: torch.optim.Optimizer
    schedule: Schedule
    train: Loader
    val: Loader | None
    parallel: Parallel
    precision: Precision
    clock: Clock
    val_clock: Clock
    checkpoints: Checkpoints | None = None
    average: Average | None = None
    stop: Callable[[], bool] = never
    recorder: Recorder | None = None
    say: Callable[[str], None] = print
