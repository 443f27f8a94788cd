"""Single precision; on CUDA, matrix products and convolutions may use TF32."""

from collections.abc import Callable
from typing import final

import torch

from framework.contracts.parallel import Precision
from framework.train.step import are_finite, gradients


@final
class FP32(Precision):
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

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        clip: Callable[[], object] | None,
        skip_bad: bool = False,
        last: bool = True,
    ) -> bool:
        if skip_bad and not are_finite(gradients(optimizer)):
            return False
        if clip is not None:
            clip()
        optimizer.step()
        return True
