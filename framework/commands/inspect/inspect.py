"""``paceline inspect STORE``: what a store holds, and a picture of some of its records."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import plain_words, quoted
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.errors import ConfigError


def main(arguments: list[str]) -> int:
    """The command; a word that is not an override is the store's path. ConfigError C100 for more than one."""
    arguments = ["json=true" if word == "--json" else word for word in arguments]
    plain = plain_words(arguments)
    if arguments[:1] == ["-sc"]:
        return run_app("inspect", arguments, _job)
    if len(plain) > 1:
        raise ConfigError(100, " ".join(plain), "more than one store", "inspect one at a time")
    return run_app("inspect", [f"store={quoted(w)}" if w in plain else w for w in arguments], _job)


def _job(cfg: DictConfig) -> int:
    return told(partial(_inspect, cfg))


def _inspect(cfg: DictConfig, run_dir: Path) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    from framework.commands.inspect.inspection import describe, facts, write_grid  # noqa: PLC0415  # loads torch

    count, grid = config["num_images"], config["grid"]
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError(
            101, f"num_images = {count}", "not a value it can have", "give int, at least 1"
        )
    if not isinstance(grid, str | None) or not isinstance(config["store"], str):
        raise ConfigError(
            101, f"store = {config['store']}, grid = {grid}", "not names of files", "give paths"
        )
    if not isinstance(config["json"], bool):
        raise ConfigError(
            101, f"json = {config['json']}", "not a value it can have", "give true or false"
        )
    path = Path(grid) if grid else run_dir / "grid.png"
    if path.suffix != ".png":
        raise ConfigError(
            101, f"grid = {path}", "not a place for a picture", "give a name that ends in .png"
        )
    if config["json"]:
        found = facts(config["store"])
        found["grid"] = str(path) if write_grid(config["store"], path, count) else None
        print(json.dumps(found))
        return RunOutcome(0, "finished")
    for line in describe(config["store"]):
        print(line)
    if write_grid(config["store"], path, count):
        print(f"sample images: {path}")
    return RunOutcome(0, "finished")
