"""``paceline inspect STORE``: what a store holds, and a picture of some of its records."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from framework.cli.app import resolved, run_app
from framework.cli.arguments import quoted
from framework.cli.outcome import Outcome, outcome_of
from framework.cli.rundir import discard_if_empty


def main(arguments: list[str]) -> int:
    """The command; a word that is not an override is the store's path."""
    words = [
        w if "=" in w or w.startswith("-") or before in ("--cfg", "--config-dir", "-c", "-cd") else f"store={quoted(w)}"
        for before, w in zip(["", *arguments], arguments, strict=False)
    ]
    return run_app("inspect", words if arguments[:1] != ["-sc"] else arguments, _job)


def _job(cfg: DictConfig) -> int:
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    outcome = outcome_of(partial(_inspect, cfg, run_dir), run_dir, show_traceback=False)
    discard_if_empty(run_dir)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def _inspect(cfg: DictConfig, run_dir: Path) -> Outcome:
    config: dict[str, Any] = resolved(cfg)
    from framework.inspection import describe, write_grid  # noqa: PLC0415  # loads torch

    for line in describe(config["store"]):
        print(line)
    path = Path(config["grid"]) if config["grid"] else run_dir / "grid.png"
    if write_grid(config["store"], path, config["num_images"]):
        print(f"sample images: {path}")
    return Outcome(0, "finished")
