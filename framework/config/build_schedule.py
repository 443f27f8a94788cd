"""Build what sets the learning rates: a Schedule of ours, or a scheduler of torch."""

from collections.abc import Sequence
from typing import Any

import torch

from framework.config.build import build
from framework.config.signature import static_signature
from framework.config.targets import Config
from framework.contracts.training import Schedule, SetsRates
from framework.schedule.constant import Constant
from framework.schedule.torch_schedule import TorchSchedule

PER = "per"  # the key that says when a scheduler of torch takes a step
EPOCHS = "warmup_epochs"
OPTIMIZER = "optimizer"  # the argument that tells a scheduler of torch


def is_foreign(block: Config) -> bool:
    """Return whether a block describes a scheduler of torch, which takes an optimizer."""
    signature = static_signature(str(block["_target_"]))
    return signature is not None and OPTIMIZER in signature.names


def build_schedule(
    block: Config,
    allowed: Sequence[str],
    optimizer: torch.optim.Optimizer,
    warmup_steps: float | None,
) -> tuple[Schedule, SetsRates | None]:
    """Return the schedule, and the scheduler of torch that sets the rates in its place, if any.

    Args:
        block: The block ``schedule``.
        allowed: Prefixes of the user's packages.
        optimizer: With the rates of the start.
        warmup_steps: Scaled, if the schedule has a warm-up.
    """
    if not is_foreign(block):
        own = {key: value for key, value in block.items() if key != EPOCHS}
        if "warmup_steps" in own:
            own["warmup_steps"] = int(warmup_steps or 0)
        return build("schedule", own, allowed), None
    own = {key: value for key, value in block.items() if key != PER}

    def make(stand_in: torch.optim.Optimizer) -> Any:
        return _scheduler("schedule", own, allowed, stand_in)

    name = str(block["_target_"])
    return Constant(), TorchSchedule(make, optimizer, block.get(PER, "step"), name)


def _scheduler(
    where: str, block: Config, allowed: Sequence[str], optimizer: torch.optim.Optimizer
) -> Any:
    """Build a scheduler, after those in its lists, as SequentialLR and ChainedScheduler have."""
    inner: Config = {OPTIMIZER: optimizer}
    for key, value in block.items():
        if isinstance(value, list) and value and all(_describes(item) for item in value):
            inner[key] = [
                _scheduler(f"{where}.{key}.{number}", item, allowed, optimizer)
                for number, item in enumerate(value)
            ]
    outer = {key: value for key, value in block.items() if key not in inner}
    return build(where, outer, allowed, **inner)


def _describes(item: Any) -> bool:
    return isinstance(item, dict) and "_target_" in item and is_foreign(item)
