"""Single precision; on CUDA, matrix products and convolutions may use TF32."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any, final

import torch
from torch import Tensor

from framework.train.step import are_finite, clip, gradients

NOTHING = nullcontext()


@final
class FP32:
    """Computation in float32.

    With ``tf32``, CUDA rounds the inputs of matrix products and convolutions to 10 mantissa bits.
    The constructor sets torch's global flags.
    """

    def __init__(self, tf32: bool, *, device: torch.device) -> None:
        # After ``torch.backends.cuda.matmul.fp32_precision = "tf32"``, reading the older flag
        # ``allow_tf32`` raises an error. After this call, both flags can be read.
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        # cuDNN convolutions have a flag of their own, which is True by default.
        torch.backends.cudnn.allow_tf32 = tf32

    loss_scale = 1.0

    def autocast(self) -> AbstractContextManager[Any]:
        return NOTHING

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
