"""Note the calls of one step whose result the host needs before it can continue.

For the length of a step, the methods of ``torch.Tensor`` that wait for the device are replaced. On
a CPU they cost little, and the same script on a GPU would wait.
"""

import inspect
import linecache
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any, final

import torch

from framework.commands.diagnose.device_syncs import Sync, culprit
from framework.measure.stack_sampler import TORCH

OPTIMIZERS = f"{TORCH}optim"
METHODS = (
    *("item", "tolist", "cpu", "numpy", "nonzero"),
    *("__bool__", "__int__", "__float__", "__index__", "__format__"),
)


@final
class WaitingCalls:
    """The waiting calls of the step between ``start`` and ``stop``."""

    def __init__(self) -> None:
        self._calls: Counter[tuple[str, int, str]] = Counter()
        self._own: dict[str, Any] = {}  # what the class itself defines
        self._is_on = False
        self._depth = 0

    def start(self) -> None:
        """Replace the methods."""
        self._is_on = True
        self._calls.clear()
        self._own = {name: vars(torch.Tensor).get(name) for name in METHODS}
        for name in METHODS:
            setattr(torch.Tensor, name, self._noting(name, getattr(torch.Tensor, name)))

    def stop(self) -> None:
        """Put the methods back. Does nothing unless they were replaced."""
        if not self._is_on:
            return
        self._is_on = False
        for name, method in self._own.items():
            if method is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, method)

    def noted(self) -> list[Sync]:
        """Return the calls, the most frequent first."""
        return [
            Sync(file, line, call, count, linecache.getline(file, line).strip())
            for (file, line, call), count in self._calls.most_common()
        ]

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noting(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                frame = inspect.currentframe()
                caller = frame and frame.f_back
                place = culprit(caller)
                if place is not None and self._depth == 0 and not _is_optimizer(caller):
                    self._calls[*place, f"{name.strip('_')}()"] += 1

        return noting


def _is_optimizer(frame: FrameType | None) -> bool:
    """Return whether a call reads the step count of an optimizer, which is on the host."""
    return frame is not None and frame.f_code.co_filename.startswith(OPTIMIZERS)
