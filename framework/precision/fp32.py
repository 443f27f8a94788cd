"""Single precision; on CUDA, matrix products and convolutions may use TF32."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor

from framework.precision.clip import clip, gradients
from framework.train.nonfinite import are_finite

_NOTHING = nullcontext()


@final
class FP32:
    """``tf32``: let matrix products and convolutions round their inputs to 10 bits of mantissa on CUDA; elsewhere it changes nothing."""

    def __init__(self, tf32: bool, *, device: torch.device) -> None:
        torch.set_float32_matmul_precision(
            "high" if tf32 else "highest"
        )  # the switches that old and new code may both read
        torch.backends.cudnn.allow_tf32 = (
            tf32  # torch's own default is True, whatever it says of products
        )

    def autocast(self) -> AbstractContextManager[Any]:
        return _NOTHING

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(
        self, optimizer: torch.optim.Optimizer, clip_norm: float | None, skip_bad: bool = False
    ) -> bool:
        if skip_bad and not are_finite(gradients(optimizer)):
            return False
        if clip_norm is not None:
            clip(optimizer, clip_norm)
        optimizer.step()
        return True

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
