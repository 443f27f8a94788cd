"""Runs of a model whose steps take a time that is known, for the tests of bisect."""

from pathlib import Path

from tests.cli.command import Done, started

MODEL = '''"""A model that sleeps in every step."""

import time

from torch import nn

try:
    from slow_package import MORE_MS  # only in an environment that has it
except ImportError:
    MORE_MS = 0


class Sleepy(nn.Module):
    def __init__(self, pause_ms, width):
        super().__init__()
        self.pause_ms = pause_ms + MORE_MS
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, 10))

    def forward(self, x):
        time.sleep(self.pause_ms / 1000)
        return self.layers(x)
'''
WORDS = (
    *("--config-dir", "mine", "recipes=digits", "dataset=digits", "model=sleepy"),
    *("allow_targets=[sleepy_model]", "max_steps=1", "workers.num=0", "loader=plain"),
    *("limit=24", "batch_size=8"),
)
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # threads that wait for each other measure the machine


def write_model(folder: Path, more: str = "") -> None:
    """Write the model and its choice; ``more`` is code behind it."""
    (folder / "sleepy_model.py").write_text(MODEL + more)
    (folder / "mine" / "model").mkdir(parents=True, exist_ok=True)
    (folder / "mine" / "model" / "sleepy.yaml").write_text(
        "# sleeps\n_target_: sleepy_model.Sleepy\npause_ms: 10\nwidth: 8\n"
    )


def sleeping_run(folder: Path, name: str, *words: str) -> Path:
    done = started("train", *WORDS, f"hydra.run.dir={name}", *words, cwd=folder, **ONE_THREAD)
    assert done.code == 0, done.err
    return folder / name


def bisected(folder: Path, *words: str, limit_s: int = 300) -> Done:
    allowed = "allow_targets=[sleepy_model]"
    return started("bisect", *words, allowed, cwd=folder, limit_s=limit_s, **ONE_THREAD)
