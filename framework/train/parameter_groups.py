"""Parameters with options of their own, chosen by name: the block ``optim.groups``.

A group has the patterns of its parameters' names in ``match``, and any of these options:

- ``lr_factor``: the factor on ``optim.lr``.
- ``until``: the share of all steps after which the group's learning rate is 0.
- Every other key is an option of the optimizer, such as ``weight_decay``.

Source of ``until``: progressive freezing, Brock et al., "FreezeOut", 2017.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from framework.errors import ConfigError
from framework.train.lr_scaling import KEYS as SCALING_KEYS

if TYPE_CHECKING:  # configurations are checked before torch is loaded
    from torch import nn, optim

GROUPS = "groups"
KEYS = (*SCALING_KEYS, GROUPS)  # keys of ``optim`` that are not the optimizer's own
UNTIL = "until"
OWN = ("match", "lr_factor", UNTIL)  # keys of a group that are not the optimizer's

Group = dict[str, Any]


def optimizer_keys(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block ``optim`` with the optimizer's own keys only."""
    return {key: value for key, value in block.items() if key not in KEYS}


def parameter_groups(
    parameters: Iterable[tuple[str, "nn.Parameter"]],
    groups: Mapping[str, Group],
    lr: float | None,
) -> list[Group]:
    """Return what an optimizer takes: first the parameters of no group, then those of each group.

    Args:
        parameters: Each with its name in the model.
        groups: The block ``optim.groups``.
        lr: The rate of the parameters of no group.

    Raises:
        ConfigError: C147 if a group has no parameters, or shares some with another group.
    """
    rest = dict(parameters)
    names = list(rest)
    result: list[Group] = []
    for name, options in groups.items():
        own = {key: value for key, value in options.items() if key not in OWN}
        if UNTIL in options:
            own[UNTIL] = options[UNTIL]
        if "lr_factor" in options:
            own["lr"] = _rate(name, options["lr_factor"], lr)
        members = _members(name, options["match"], names)
        if taken := [member for member in members if member not in rest]:
            where = f"optim.groups.{name}.match = {options['match']}"
            what = f"matches {taken[0]}, which another group has"
            raise ConfigError(147, where, what, "give each parameter to one group")
        result.append({"params": [rest.pop(member) for member in members], **own})
    if rest:
        result.insert(0, {"params": list(rest.values())})
    return result


def _members(name: str, match: str | list[str], names: list[str]) -> list[str]:
    """Return the names that match a group's patterns."""
    patterns = [match] if isinstance(match, str) else match
    members = [own for own in names if any(fnmatchcase(own, pattern) for pattern in patterns)]
    if not members:
        where = f"optim.groups.{name}.match = {match}"
        what = f"matches no parameter of the model, whose first is {names[0]}"
        fix = "give names of parameters, with * for any part of them"
        raise ConfigError(147, where, what, fix)
    return members


def _rate(name: str, factor: float, lr: float | None) -> float:
    if lr is None:
        where = f"optim.groups.{name}.lr_factor = {factor}"
        raise ConfigError(147, where, "is a factor on optim.lr, which is not set", "set optim.lr")
    return lr * factor


def check_options(optimizer: "optim.Optimizer", groups: Mapping[str, Group]) -> None:
    """Raise ConfigError C102 for a group's option that the optimizer does not have.

    torch itself would ignore it.
    """
    known = [*OWN, *(key for key in optimizer.defaults if key != "lr")]
    for name, options in groups.items():
        for key, value in options.items():
            if key not in known:
                where = f"optim.groups.{name}.{key} = {value}"
                what = f"neither {', '.join(OWN)} nor an option of {type(optimizer).__name__}"
                raise ConfigError(102, where, what, "correct or remove it")
