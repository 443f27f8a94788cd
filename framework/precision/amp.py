"""Mixed precision: products in 16 bits, sums and weights in 32."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, final

import torch
from torch import Tensor

from framework.contracts.parallel import Precision
from framework.errors import ConfigError
from framework.train.step import are_finite, gradients

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@final
class AMP(Precision):
    """Autocast to ``dtype``. The loss of fp16 is scaled so that small gradients do not vanish."""

    def __init__(self, dtype: str, *, device: torch.device) -> None:
        if dtype not in DTYPES:
            where = f"precision.dtype = {dtype}"
            raise ConfigError(110, where, "not a 16-bit type", "choose bf16 or fp16")
        self._autocast = torch.amp.autocast(device.type, DTYPES[dtype])
        self._scaler = torch.amp.GradScaler(device.type, enabled=dtype == "fp16")
        self._optimizers: set[torch.optim.Optimizer] = set()
        self._stepped = False

    @property
    def loss_scale(self) -> float:
        return self._scaler.get_scale()

    def autocast(self) -> AbstractContextManager[Any]:
        return self._autocast

    def backward(self, loss: Tensor) -> None:
        self._scaler.scale(loss).backward()

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        clip: Callable[[], object] | None,
        skip_bad: bool = False,
        last: bool = True,
    ) -> bool:
        # a scaler looks for bad gradients by itself
        looks = skip_bad and not self._scaler.is_enabled()
        if looks and not are_finite(gradients(optimizer)):
            return False
        if optimizer not in self._optimizers:
            # the optimizer itself reports its steps: comparing scales would synchronize
            self._optimizers.add(optimizer)
            optimizer.register_step_post_hook(self._mark_stepped)
        if clip is not None:
            # before clipping, since the norm of scaled gradients means nothing
            self._scaler.unscale_(optimizer)
            clip()
        self._stepped = False
        self._scaler.step(optimizer)
        if last:
            self._scaler.update()
        return self._stepped

    def _mark_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # torch sets it while it calls a fused optimizer, which skips steps by itself
        found_inf: Tensor | None = vars(optimizer).get("found_inf")
        self._stepped = found_inf is None or not found_inf.item()

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:  # otherwise the scale begins as in a new run
            self._scaler.load_state_dict(state)
