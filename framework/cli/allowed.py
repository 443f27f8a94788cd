"""The user's packages that a configuration may call.

Only the command line and the environment name them, never a file.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from framework.config.schema import RULES
from framework.config.targets import as_prefixes
from framework.errors import ConfigError

VARIABLE = "PACELINE_ALLOW_TARGETS"


class Grant(NamedTuple):
    """What the user allowed. It is noted before Hydra runs, since a file may set the environment.

    Attributes:
        typed: Whether ``allow_targets`` was typed.
        exported: The value of the environment variable.
    """

    typed: bool
    exported: str


def granted(arguments: list[str]) -> Grant:
    """Return what the command line and the environment allow."""
    typed = any(word.lstrip("+").startswith("allow_targets=") for word in arguments)
    return Grant(typed, os.environ.get(VARIABLE, ""))


def allowed_targets(config: dict[str, Any], grant: Grant) -> tuple[str, ...]:
    """Return what a ``_target_`` may begin with, beyond ours.

    ConfigError C105 if a file says so.
    """
    given = config.get("allow_targets") or []
    where = f"allow_targets = {given}"
    RULES["allow_targets"].check("allow_targets", given)
    if given and not grant.typed:
        what = "set by a configuration file, which must not allow itself anything"
        raise ConfigError(105, where, what, f"give it on the command line, or by {VARIABLE}")
    allowed = as_prefixes([*map(str, given), *grant.exported.split(",")])
    find_packages(allowed)
    return allowed


def find_packages(allowed: Sequence[str]) -> None:
    """Let this process import the user's packages from the present directory, if any."""
    if allowed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
