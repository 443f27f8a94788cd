"""Run the real command in a real process."""

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.cli import preloaded
from tests.cli.preloaded import Server


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
    """Run ``paceline ARGUMENTS`` in the test's own directory, or in ``cwd``.

    If the test has changed the environment, the process is started anew, because libraries read
    theirs when they are loaded. All others are forked from one that has loaded them.
    """
    before = _without_pytest(preloaded.at_start_of_test)
    if not environment and _without_pytest(os.environ) == before:
        return Done(*_server().run(arguments, cwd, limit_s))
    return started(*arguments, cwd=cwd, limit_s=limit_s, **environment)


def started(
    *arguments: str, cwd: Path | None = None, limit_s: int = 120, **environment: str
) -> Done:
    """Run ``paceline ARGUMENTS`` in a new process that loads everything itself."""
    words = [sys.executable, "-m", "framework", *arguments]
    env = {**os.environ, **environment}
    done = subprocess.run(
        words, cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s, check=False
    )
    return Done(done.returncode, done.stdout, done.stderr)


@cache
def _server() -> Server:
    server = Server()
    atexit.register(server.close)
    return server


def _without_pytest(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if "PYTEST" not in name}


def losses(run_dir: Path, split: str = "train") -> list[float]:
    """Return the loss of every report of a run."""
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [line["loss"] for line in map(json.loads, lines) if line["split"] == split]


def write_linear(folder: Path) -> None:
    """Write ``recipes=linear`` for ``--config-dir folder``.

    It learns the digits by logistic regression, which has no batch norm and repeats itself.
    """
    for name in ("model", "recipes"):
        (folder / name).mkdir(parents=True)
    (folder / "model" / "linear.yaml").write_text(
        "# one layer\n_target_: torch.nn.Sequential\n_args_:\n"
        "  - {_target_: torch.nn.Flatten}\n"
        "  - {_target_: torch.nn.Linear, in_features: 64, out_features: 10}\n"
    )
    (folder / "recipes" / "linear.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n  - override /model: linear\n"
    )


def is_one_error_line(done: Done, number: str) -> bool:
    """Return whether the command ended in exactly one error line, without a traceback.

    The line must have the error ``number``.
    """
    lines = [line for line in done.err.splitlines() if line.startswith("error[")]
    return (
        len(lines) == 1
        and lines[0].startswith(f"error[{number}]: ")
        and "Traceback" not in done.err + done.out
    )
