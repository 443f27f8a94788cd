"""Choose the algorithms of torch and its libraries: the fastest, or those that repeat."""

import os
from typing import final

import torch


@final
class _Choice:
    deterministic = False  # whether the newest run in this process asked for it


def is_deterministic() -> bool:
    """Return whether the newest run in this process asked for algorithms that repeat."""
    return _Choice.deterministic


def choose_algorithms(device: torch.device, deterministic: bool) -> None:
    """Let cuDNN try which algorithms are fastest, or take those that repeat their results.

    With ``deterministic``, an operator that has no such algorithm raises RuntimeError. Call it
    before the first use of the device.
    """
    if deterministic or _Choice.deterministic:  # otherwise the user's own code may have chosen
        _Choice.deterministic = deterministic
        torch.use_deterministic_algorithms(deterministic)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS looks when it starts
        # filling memory that is about to be written would only take time
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # torch's stub lacks it
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = not deterministic  # batches have few sizes
