"""Which packages of the user's a configuration may call: said on the command line or in the environment, never in a file."""

import os
import sys
from typing import Any, NamedTuple

from framework.config.targets import as_prefixes
from framework.errors import ConfigError

VARIABLE = "PACELINE_ALLOW_TARGETS"


class Grant(NamedTuple):
    """Whether ``allow_targets`` was typed, and what was exported; noted before Hydra runs, since a file may set the environment then."""

    typed: bool
    exported: str


def granted(arguments: list[str]) -> Grant:
    """What the command line and the environment say."""
    typed = any(word.lstrip("+").startswith("allow_targets=") for word in arguments)
    return Grant(typed, os.environ.get(VARIABLE, ""))


def allowed_targets(config: dict[str, Any], grant: Grant) -> tuple[str, ...]:
    """What a ``_target_`` may begin with, beyond ours. ConfigError C105 where a file says so."""
    given = config.get("allow_targets") or []
    if not isinstance(given, list):
        raise ConfigError(
            101,
            f"allow_targets = {given}",
            "not a value it can have",
            "give packages, as in 'allow_targets=[mypkg]'",
        )
    if given and not grant.typed:
        what = "set by a configuration file, which must not allow itself anything"
        raise ConfigError(
            105, f"allow_targets = {given}", what, f"give it on the command line, or by {VARIABLE}"
        )
    allowed = as_prefixes([*map(str, given), *grant.exported.split(",")])
    if allowed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the user's package is where the user stands
    return allowed
