"""Several optimizers that step as one."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.optim import Optimizer


class Joined(Optimizer):
    """Several optimizers by name, each over parameters of its own, that step together.

    It has the groups of all, in their order, and the state of all. So a schedule sets every rate,
    clipping sees every gradient, and ``state_dict`` numbers the parameters through.
    """

    def __init__(self, parts: Mapping[str, Optimizer]) -> None:
        self.parts = dict(parts)
        super().__init__([group for part in parts.values() for group in part.param_groups], {})
        for part in parts.values():
            self.state.update(part.state)  # what some of torch's make at once
        self._share()

    def _share(self) -> None:
        """Give each part its groups, and the state of all."""
        groups = iter(self.param_groups)
        for part in self.parts.values():
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the groups and the state that ``load_state_dict`` has made."""
        super().__setstate__(state)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # pyright: ignore[reportIncompatibleMethodOverride]  # torch's overloads
        loss = None if closure is None else closure()
        for part in self.parts.values():
            part.step()
        return loss
