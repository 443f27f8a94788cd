"""The watchers of a run: rank 0 calls them, and all ranks agree when one wants to stop."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch

from framework.contracts.parallel import Parallel
from framework.contracts.training import Moment, Watcher
from framework.errors import ConfigError
from framework.system.rng import kept_generators
from framework.system.user_code import raise_if_user_error
from framework.train.plain_state import is_plain


@final
class Idle(Watcher):
    """Takes the place of a watcher on the ranks that do not call it."""


@final
class Watching:
    """Calls watchers by name.

    Args:
        watchers: The same names on all ranks. Only rank 0 calls them.
        parallel: The ranks.
        run_dir: The directory of the run, or None.
        packages: Prefixes of the user's module names, for messages.

    Attributes:
        asks: Whether a watcher of this rank wants to stop.
        run_dir: As given, for ``Moment``.
    """

    def __init__(
        self,
        watchers: Mapping[str, Watcher],
        parallel: Parallel,
        run_dir: Path | None = None,
        packages: Sequence[str] = (),
    ) -> None:
        self.is_on = bool(watchers)
        self.asks = False
        self.run_dir = run_dir
        self._reason = ""
        self._parallel = parallel
        self._packages = packages
        self._watchers: Mapping[str, Watcher] = watchers if parallel.rank == 0 else {}
        self.state_dict()  # which must not fail at the first save: ConfigError C334

    def after_report(self, moment: Moment) -> None:
        self._each(moment, lambda watcher: watcher.after_report)

    def after_validation(self, moment: Moment) -> None:
        self._each(moment, lambda watcher: watcher.after_validation)

    def after_save(self, moment: Moment) -> None:
        self._each(moment, lambda watcher: watcher.after_save)

    def at_end(self, moment: Moment) -> None:
        self._each(moment, lambda watcher: watcher.at_end)

    def agreed(self) -> str:
        """Return why rank 0 wants to stop, or "". All ranks call it together."""
        if not self.is_on:
            return ""
        # a space, since ranks cannot gather nothing
        words = torch.tensor(list(f" {self._reason}".encode()), dtype=torch.uint8)
        return bytes(self._parallel.gather(words)[0].tolist()).decode().strip()

    def _each(
        self, moment: Moment, method: Callable[[Watcher], Callable[[Moment], str | None]]
    ) -> None:
        if not self._watchers:
            return
        # A watcher that draws random numbers must not change those that rank 0 trains with.
        with kept_generators(self._parallel.device):
            for name, watcher in self._watchers.items():
                call = method(watcher)
                reason = self._called(name, call, moment)
                if reason is not None and not isinstance(reason, str):
                    what = f"returned a {type(reason).__name__}"
                    fix = "return why to stop, a text, or None to go on"
                    raise ConfigError(333, f"{name}.{call.__name__}", what, fix)
                if reason and not self.asks:
                    self.asks = True
                    self._reason = " ".join(reason.split()) or name

    def _called(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of a watcher. An exception names the user's file and line."""
        try:
            return call(*arguments)
        except Exception as error:
            about = f"{name}.{call.__name__}"
            raise_if_user_error(error, self._packages, about, f"correct it, or leave {name} out")
            raise

    def state_dict(self) -> dict[str, Any]:
        """Return what each watcher remembers, and the reason that is not agreed on yet.

        ConfigError C334 for what no state can hold.
        """
        states: dict[str, Any] = {}
        for name, watcher in self._watchers.items():
            states[name] = self._called(name, watcher.state_dict)
            if not isinstance(states[name], dict) or not is_plain(states[name]):
                what = "returns more than tensors and plain values in a dict"
                fix = "return numbers, texts, tensors, and lists and dicts of them"
                raise ConfigError(334, f"{name}.state_dict", what, fix)
        return {"reason": self._reason, "watchers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state``. A watcher that it lacks starts anew."""
        states = state["watchers"]
        if self._watchers:
            self._reason = state["reason"]
            self.asks = bool(self._reason)
        for name, watcher in self._watchers.items():
            if name in states:
                self._called(name, watcher.load_state_dict, states[name])
