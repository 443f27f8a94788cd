"""A run's state on disk: ``checkpoints/state.pt`` to resume from, ``last.pt`` and ``best.pt`` to use.

``last.pt`` and ``best.pt`` are plain ``state_dict``s, loadable by anyone with ``torch.load(..., weights_only=True)``. ``state.pt`` holds
everything a resumed run needs, weights included, so that it is whole by itself whenever a run ends.
"""

from pathlib import Path
from typing import Any, final

import torch

from framework.durable import open_durable
from framework.errors import CheckpointError

FOLDER = "checkpoints"


@final
class CheckpointFolder:
    """Checkpoints under ``run_dir``."""

    def __init__(self, run_dir: Path) -> None:
        self.folder = run_dir / FOLDER

    def save(self, state: dict[str, Any], weights: dict[str, Any], best: bool) -> None:
        _save(self.folder / "state.pt", state)
        _save(self.folder / "last.pt", weights)
        if best:
            _save(self.folder / "best.pt", weights)


def _save(path: Path, value: Any) -> None:
    with open_durable(path) as file:
        torch.save(value, file)


def load_state(run_dir: Path) -> dict[str, Any]:
    """The newest state of a run. CheckpointError where there is none or it cannot be read; nothing in it is ever executed."""
    path = run_dir / FOLDER / "state.pt"
    if not path.is_file():
        raise CheckpointError(
            101, f"resume = {run_dir}", "no checkpoints/state.pt there", "give the directory of a run that has saved one"
        )
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged pickle can raise anything
        words = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise CheckpointError(
            102, str(path), f"cannot be read ({words})", "start again, or use checkpoints/last.pt for the weights"
        ) from error
