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
    """float32; with ``tf32``, CUDA rounds the inputs of products to 10 bits of mantissa."""

    def __init__(self, tf32: bool, *, device: torch.device) -> None:
        # the switch that old and new code may both read
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        # torch's own default is True, whatever the products use
        torch.backends.cudnn.allow_tf32 = tf32

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
