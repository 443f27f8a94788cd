"""What no file may say: the user's packages that are called, servers, and places elsewhere."""

import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from framework.cli.arguments import quoted
from framework.config.schema import option_rules
from framework.config.targets import as_prefixes, is_below, val_sets
from framework.errors import ConfigError
from framework.system.run_dir import redacted

VARIABLE = "PACELINE_ALLOW_TARGETS"


class Grant(NamedTuple):
    """What the user said. It is noted before Hydra runs, since a file may set the environment."""

    keys: frozenset[str]  # that were typed
    exported: str  # the packages in the environment variable


def granted(arguments: Sequence[str]) -> Grant:
    """Return what the command line and the environment say."""
    keys = (word.partition("=")[0].lstrip("+") for word in arguments)
    return Grant(frozenset(keys), os.environ.get(VARIABLE, ""))


def allowed_targets(config: dict[str, Any], grant: Grant) -> tuple[str, ...]:
    """Return what a ``_target_`` may begin with, beyond ours. ConfigError C105, C207."""
    given = config.get("allow_targets") or []
    option_rules("train")["allow_targets"].check("allow_targets", given)
    if given and "allow_targets" not in grant.keys:
        what = "set by a configuration file, which must not allow itself anything"
        fix = f"give it on the command line, or by {VARIABLE}"
        raise ConfigError(105, f"allow_targets = {given}", what, fix)
    # places to write, and servers, by the key that names each
    places = {
        f"sink.{name}.uri": block.get("uri")
        for name, block in (config.get("sink") or {}).items()
        if isinstance(block, dict)
    }
    output, data, parallel = (config.get(name) for name in ("output", "data", "parallel"))
    if isinstance(output, dict) and ("_target_" in output or "output" not in grant.keys):
        places["output.path"] = output.get("path")
    if config.get("prepare") and isinstance(data, dict):
        sets = (data.get("train"), *val_sets(data).values())
        if not all(os.path.exists(path) for path in sets if isinstance(path, str)):
            places["dataset"] = config.get("dataset")
    if isinstance(parallel, dict):
        places["parallel.endpoint"] = parallel.get("endpoint")
    for key, place in places.items():
        if key not in grant.keys and place is not None and not names_no_server(str(place)):
            what = "named by a file, which may name no server, and places below this folder alone"
            word = shlex.quote(f"{key}={quoted(redacted(str(place)))}")
            fix = f"if you trust it, add {word} on the command line"
            raise ConfigError(207, f"{key} = {redacted(place)}", what, fix)
    allowed = as_prefixes([*map(str, given), *grant.exported.split(",")])
    find_packages(allowed)
    return allowed


def names_no_server(place: str) -> bool:
    """Return whether a path, or the address of a database in a file, lies below this folder."""
    path = re.sub(r"^(sqlite:///|file:(//)?)", "", place)
    return not re.search(r"[:?%]", path) and is_below(path)


def find_packages(allowed: Sequence[str]) -> None:
    """Let this process import the user's packages from the present directory, if any."""
    if allowed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
