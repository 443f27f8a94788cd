"""``paceline inspect STORE``: show what a store holds, with a picture of some of its records."""

import json
from dataclasses import dataclass
from pathlib import Path

from framework.cli.outcome import RunOutcome, option, run_options
from framework.errors import ConfigError, say


@dataclass(frozen=True)
class InspectOptions:
    """Show what a store holds, with a picture of some records."""

    store: str = option(about="the store; 'paceline inspect FILE' is short for store=FILE")
    grid: str | None = option(None, "where the picture goes; null: below outputs/inspect")
    num_images: int = option(36, "records in the picture", least=1)
    json: bool = option(
        False, "or --json: all facts as one JSON object, each class with its number of records"
    )


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the path of the store."""
    return run_options("inspect", arguments, InspectOptions, _inspect, plain="store")


def _inspect(options: InspectOptions, run_dir: Path) -> RunOutcome:
    grid = Path(options.grid or run_dir / "grid.png")
    if grid.suffix != ".png":
        fix = "give a name that ends in .png"
        raise ConfigError(101, f"grid = {grid}", "does not name a picture", fix)
    # This loads torch, which a wrong key should not have to wait for.
    from framework.commands.inspect import inspection  # noqa: PLC0415

    known = inspection.facts(options.store)
    if not options.json:
        for line in inspection.describe(known):
            say(line)
    is_drawn = inspection.write_grid(options.store, grid, options.num_images)
    if options.json:
        print(json.dumps({**known, "grid": str(grid) if is_drawn else None}))
    elif is_drawn:
        say(f"sample images: {grid}")
    return RunOutcome(0, "finished")
