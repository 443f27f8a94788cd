"""Run the real command in a real process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple


class Done(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def last_line(self) -> str:
        return self.err.strip().splitlines()[-1]


def paceline(
    *arguments: str, cwd: Path | None = None, limit_s: int = 120, **environment: str
) -> Done:
    """``paceline arguments``; the directory is the test's own unless ``cwd`` says otherwise."""
    words = [sys.executable, "-m", "framework", *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


def losses(run_dir: Path, split: str = "train") -> list[float]:
    """The loss of every report of a run."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if line["split"] == split]


def write_linear(folder: Path) -> None:
    """``recipes=linear`` for ``--config-dir folder``: the digits by logistic regression, which has no batch norm and repeats itself."""
    for name in ("model", "recipes"):
        (folder / name).mkdir(parents=True)
    (folder / "model" / "linear.yaml").write_text(
        "# one layer\n_target_: torch.nn.Sequential\n_args_:\n"
        "  - {_target_: torch.nn.Flatten}\n  - {_target_: torch.nn.Linear, in_features: 64, out_features: 10}\n"
    )
    (folder / "recipes" / "linear.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n  - override /model: linear\n"
    )


def is_one_error_line(done: Done, number: str) -> bool:
    """Whether the command ended in exactly one error line of that number, without a traceback."""
    lines = [line for line in done.err.splitlines() if line.startswith("error[")]
    return (
        len(lines) == 1
        and lines[0].startswith(f"error[{number}]: ")
        and "Traceback" not in done.err + done.out
    )
