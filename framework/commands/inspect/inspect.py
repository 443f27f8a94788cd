"""``paceline inspect STORE``: show what a store holds, with a picture of some of its records."""

import json
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from framework.cli.arguments import with_store
from framework.cli.hydra_app import resolved, run_app
from framework.cli.outcome import RunOutcome, told
from framework.config.rule import Rule, check_values
from framework.errors import ConfigError, say

RULES = {
    "store": Rule(str, means="a path"),
    "grid": Rule(str | None, means="a path"),
    "num_images": Rule(int, 1),
    "json": Rule(bool),
}


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the path of the store."""
    arguments = ["json=true" if word == "--json" else word for word in arguments]
    arguments = with_store(arguments, "inspect")
    return run_app("inspect", arguments, lambda cfg: told(partial(_inspect, cfg)))


def _inspect(cfg: DictConfig, run_dir: Path) -> RunOutcome:
    config: dict[str, Any] = resolved(cfg)
    check_values(config, RULES)
    store = config["store"]
    count = config["num_images"]
    grid = Path(config["grid"] or run_dir / "grid.png")
    if grid.suffix != ".png":
        fix = "give a name that ends in .png"
        raise ConfigError(101, f"grid = {grid}", "does not name a picture", fix)
    # This loads torch, which a wrong key should not have to wait for.
    from framework.commands.inspect.inspection import describe, facts  # noqa: PLC0415
    from framework.commands.inspect.record_grid import write_grid  # noqa: PLC0415

    if config["json"]:
        known = facts(store)
        known["grid"] = None
        if write_grid(store, grid, count):
            known["grid"] = str(grid)
        print(json.dumps(known))
        return RunOutcome(0, "finished")
    for line in describe(store):
        say(line)
    if write_grid(store, grid, count):
        say(f"sample images: {grid}")
    return RunOutcome(0, "finished")
