"""Find the calls in the user's code whose result the host needs before it can continue."""

import inspect
import linecache
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor

from framework.measure.stack_sampler import TORCH, charged

# Reading the step count of an optimizer, which is on the host, does not wait.
OPTIMIZERS = f"{TORCH}optim"
FUNCTIONS = ("nonzero", "unique", "masked_select", "equal", "allclose", "is_nonzero", "where")
METHODS = (
    *("item", "tolist", "cpu", "numpy", "to", *FUNCTIONS[:-1]),
    *("__bool__", "__int__", "__float__", "__index__", "__array__", "__contains__", "__repr__"),
    *("__format__", "__getitem__"),
)


@dataclass(frozen=True)
class Sync:
    """A call that waits for the device."""

    file: str
    line: int
    call: str
    count: int  # calls in one step
    text: str  # the line of code


@final
class WaitingCalls:
    """The waiting calls between ``start`` and ``stop``, which replace methods of tensors."""

    def __init__(self, moves: bool = True) -> None:
        # On a CPU, a script moves every tensor by ``to``.
        self._methods = METHODS if moves else tuple(name for name in METHODS if name != "to")
        self._calls: Counter[tuple[str, int, str]] = Counter()
        self._undo: list[Callable[[], object]] = []
        self._depth = 0

    def start(self) -> None:
        """Replace the methods, and forget what was noted before."""
        self._calls.clear()
        for owner, names in ((Tensor, self._methods), (torch, FUNCTIONS)):
            for name in names:
                own = vars(owner).get(name)
                back = partial(delattr, owner, name)
                self._undo.append(back if own is None else partial(setattr, owner, name, own))
                setattr(owner, name, self._noting(name, getattr(owner, name)))

    def stop(self) -> None:
        """Put the methods back. Does nothing unless they were replaced."""
        while self._undo:
            self._undo.pop()()

    def noted(self) -> list[Sync]:
        """Return the calls, the most frequent first."""
        return [
            Sync(file, line, call, count, linecache.getline(file, line).strip())
            for (file, line, call), count in self._calls.most_common()
        ]

    def _noting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        known = {"__getitem__": "index by a mask", "to": "to('cpu')"}
        call = known.get(name, f"{name.strip('_')}()")

        def noting(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0 and _waits(name, args, kwargs):
                    frame = inspect.currentframe()
                    caller = frame and frame.f_back
                    if caller and not caller.f_code.co_filename.startswith(OPTIMIZERS):
                        place = charged(caller)  # None if no code of the user made the call
                        if place is not None:
                            self._calls[place.file, place.line, call] += 1

        return noting


def _waits(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    if name == "to":
        return "cpu" in map(str, (*args[1:], *kwargs.values()))
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name != "__getitem__":
        return True
    # The number of true elements of a mask decides the shape of the result.
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    masks = [part for part in index if isinstance(part, Tensor)]
    return any(mask.dtype in (torch.bool, torch.uint8) for mask in masks)
