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
from framework.errors import ConfigError


def main(arguments: list[str]) -> int:
    """The command; a word that is not an override is the store's path. ConfigError C100 for more than one."""
    takes_value = ("--cfg", "-c", "--config-dir", "-cd", "--package", "-p")
    plain = [
        w
        for before, w in zip(["", *arguments], arguments, strict=False)
        if not w.startswith("-") and "=" not in w and before not in takes_value
    ]
    if arguments[:1] == ["-sc"]:
        return run_app("inspect", arguments, _job)
    if len(plain) > 1:
        raise ConfigError(100, " ".join(plain), "more than one store", "inspect one at a time")
    return run_app("inspect", [f"store={quoted(w)}" if w in plain else w for w in arguments], _job)


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

    path = Path(config["grid"]) if config["grid"] else run_dir / "grid.png"
    if path.suffix != ".png":
        raise ConfigError(101, f"grid = {path}", "not a place for a picture", "give a name that ends in .png")
    for line in describe(config["store"]):
        print(line)
    if write_grid(config["store"], path, config["num_images"]):
        print(f"sample images: {path}")
    return Outcome(0, "finished")
