"""The two things that a bisection compares: directories of runs, or files of benches."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.cli.allowed import Grant
from framework.cli.arguments import option
from framework.cli.compose_config import composed
from framework.commands.bench.grid import label
from framework.commands.bench.lines import Bench, Measured, choice_key, collected, read
from framework.commands.report.json_values import load, mapping, positive, words
from framework.config.saved_config import read_config, recorded_ranks
from framework.config.schema import FACTS
from framework.config.targets import check_targets, with_folds, with_functions
from framework.errors import ConfigError

Config = dict[str, Any]


@dataclass(frozen=True)
class Side:
    """One of two settings whose rates differ.

    Attributes:
        name: The path as typed, and for a bench which of its cells.
        config: The configuration as plain values.
        facts: What was recorded about versions, commit and machine.
        rate: Records per second as recorded; None if the run did not end.
        spread: The spread of this rate over the repeats of a bench; None for a run.
    """

    name: str
    config: Config
    facts: Mapping[str, Any]
    rate: float | None
    spread: float | None = None

    @property
    def commit(self) -> str | None:
        """The commit of the working directory, as recorded; with ``+`` if files had changed."""
        commit = self.facts.get("git")
        return commit if isinstance(commit, str) else None

    @property
    def versions(self) -> dict[str, str]:
        """The versions of packages, as recorded."""
        return {str(name): str(own) for name, own in mapping(self.facts.get("versions")).items()}


def differing_packages(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of packages whose versions differ, or that only one side has."""
    names = dict.fromkeys([*before, *after])
    return [name for name in names if before.get(name) != after.get(name)]


def read_sides(before: str, after: str, grant: Grant, allowed: Sequence[str]) -> tuple[Side, Side]:
    """Read both sides. Of two benches with several cells, those that differ most are compared.

    Raises:
        ConfigError: C345 for a path that is neither, C346 for benches that share no cell or
            measured something else than training, C347 for a side of several hosts.
    """
    benches = [None if os.path.isdir(path) else _bench(path) for path in (before, after)]
    sides: list[Side] = []
    cells = _cells(before, after, *benches)
    for path, bench, cell in zip((before, after), benches, cells, strict=True):
        if bench is None or cell is None:
            side = _of_run(path, allowed)
        else:
            side = _of_cell(path, bench, cell, grant, allowed)
        _check_one_host(side)
        sides.append(side)
    return sides[0], sides[1]


def _bench(path: str) -> Bench:
    if not Path(path).is_file():
        fix = "give the directory of a run, or a file that 'paceline bench' has written"
        raise ConfigError(345, path, "is neither", fix)
    bench = read(Path(path))
    if bench.header["what"] != "train":
        what = f"measured {bench.header['what']}, and bisect measures training steps"
        raise ConfigError(346, path, what, "give a bench of what=train")
    return bench


def _cells(
    before: str, after: str, first: Bench | None, second: Bench | None
) -> tuple[Measured | None, Measured | None]:
    """Return the cell of each bench to compare."""
    old, new = (_running(bench) for bench in (first, second))
    if first is None or second is None:
        return _only_cell(before, old), _only_cell(after, new)
    if len(old) == len(new) == 1:
        return old[0], new[0]
    by_choice = {choice_key(cell.choice): cell for cell in new}
    shared = [(cell, by_choice.get(choice_key(cell.choice))) for cell in old]
    pairs = [(own, other) for own, other in shared if other is not None]
    if not pairs:
        what = "share no combination that runs in both"
        fix = "give benches of one combination each, or of the same ones"
        raise ConfigError(346, f"{before}, {after}", what, fix)
    return max(pairs, key=lambda pair: _distance(*pair))


def _only_cell(path: str, cells: Sequence[Measured]) -> Measured | None:
    """Return the cell of a bench that is compared with a run; None if no cell runs."""
    if len(cells) > 1:
        what = f"has {len(cells)} combinations, and a run is only one"
        raise ConfigError(346, path, what, "give a bench of one combination")
    return next(iter(cells), None)


def _distance(before: Measured, after: Measured) -> float:
    return abs(math.log(after.records_per_s / before.records_per_s))


def _running(bench: Bench | None) -> list[Measured]:
    if bench is None:
        return []
    return [cell for cell in collected([bench]) if cell.runs]


def _of_run(path: str, allowed: Sequence[str]) -> Side:
    config, _ = read_config(Path(path))
    config = with_folds(with_functions(config))
    check_targets(config, allowed)
    summary = load(Path(path, "summary.json"))
    facts = load(Path(path, FACTS))
    ranks = recorded_ranks(facts)
    if ranks and "num_processes" in config["parallel"]:  # torchrun may start others
        config["parallel"]["num_processes"] = ranks
    return Side(path, config, facts, positive(summary.get("records_per_s")))


def _of_cell(path: str, bench: Bench, cell: Measured, grant: Grant, allowed: Sequence[str]) -> Side:
    """Compose the configuration of a cell. What may be called has to be allowed anew."""
    fixed = words(bench.header["overrides"])
    typed = [word for word in fixed if not word.lstrip("+").startswith("allow_targets=")]
    typed += [f"{key}={value}" for key, value in cell.choice.items()]
    if grant.typed:
        typed.append(f"allow_targets=[{','.join(name.rstrip('.') for name in allowed)}]")
    config_dir = option(words(bench.header.get("command")), "--config-dir", "-cd")
    config, _ = composed(typed, grant, config_dir)
    name = path
    if cell.choice:
        name += f" ({label(cell.choice)})"
    return Side(name, config, bench.header, cell.records_per_s, cell.spread)


def _check_one_host(side: Side) -> None:
    num_nodes = side.config["parallel"].get("num_nodes", 1)
    if num_nodes > 1:
        what = f"was trained on {num_nodes} hosts, and bisect measures on one"
        fix = "train both with the ranks of one host"
        raise ConfigError(347, side.name, what, fix)
