"""Load the weights of the model that teaches another one."""

from typing import Any

from torch import Tensor

from framework.contracts.training import HasTeacher
from framework.errors import ConfigError
from framework.train.weight_files import read_weights


def load_teacher(objective: object) -> None:
    """Load the weights that an objective names for its teacher, if it has one.

    Raises:
        ConfigError: C319 if they are those of another model.
        CheckpointError: As ``read_weights``, if the file cannot be read.
    """
    if not isinstance(objective, HasTeacher) or objective.weights is None:
        return
    own: dict[str, Any] = objective.teacher.state_dict()
    saved = read_weights(objective.weights, names=own)
    where = f"objective.weights = {objective.weights}"
    faults = [f"lacks {name}" for name in own if name not in saved]
    faults += [f"has {name}, which the teacher has not" for name in saved if name not in own]
    faults += [
        f"has {name} of the shape {list(value.shape)}, not {list(own[name].shape)}"
        for name, value in saved.items()
        if isinstance(own.get(name), Tensor) and own[name].shape != value.shape
    ]
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        fix = "set the keys of objective.teacher to those of the model that was saved"
        raise ConfigError(319, where, f"{faults[0]}{more}", fix)
    objective.teacher.load_state_dict(saved)
