"""Parameters with options of their own: ``groups``, ``no_decay`` and ``layer_decay`` of ``optim``.

A group has the patterns of its parameters' names in ``match``, and any of these options:

- ``lr``: its rate, in place of ``optim.lr``.
- ``lr_factor``: the factor on ``optim.lr``.
- ``until``: the share of all steps after which the group's learning rate is 0.
- Every other key is an option of the optimizer, such as ``weight_decay``.

Source:
    ``until``: progressive freezing, Brock et al., "FreezeOut", 2017. ``layer_decay``: Clark et al.,
    "ELECTRA", 2020, and Bao et al., "BEiT", 2021.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from framework.errors import ConfigError
from framework.train.lr_scaling import KEYS as SCALING_KEYS
from framework.train.name_patterns import matching, what_model_has

if TYPE_CHECKING:  # configurations are checked before torch is loaded
    from torch import Tensor, nn, optim

    from framework.train.model_layers import ModelBlocks

GROUPS = "groups"
NO_DECAY = "no_decay"
LAYER_DECAY = "layer_decay"
GROUPING = (GROUPS, NO_DECAY, LAYER_DECAY)
KEYS = (*SCALING_KEYS, *GROUPING)  # keys of ``optim`` that are not the optimizer's own
UNTIL = "until"
NAME = "name"  # of an optimizer's group, for people
GROUP = "objective"  # the name of the group of what the objective owns
OWN = ("match", "lr", "lr_factor", UNTIL)  # keys of a group that every optimizer has
NORM = "norm"  # in ``no_decay``: the parameters of normalization modules
BIAS = "bias"  # in ``no_decay``: the parameters whose names end so
ALL = -1  # in place of the number of a block

Group = dict[str, Any]


class GroupShare(NamedTuple):
    """What the parameters of one of the optimizer's groups have in common.

    Attributes:
        number: Of the group in ``optim.groups``, from 1. For parameters of no group it is 0, or the
            number after the last group for those of the objective.
        block: The number of their block; ``ALL`` if their rate does not depend on it.
        is_free: Whether they have no weight decay.
    """

    number: int
    block: int
    is_free: bool


def optimizer_keys(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block ``optim`` with the optimizer's own keys only."""
    return {key: value for key, value in block.items() if key not in KEYS}


def is_grouped(block: Mapping[str, Any]) -> bool:
    """Return whether the block ``optim`` gives some parameters options of their own."""
    return bool(block.get(GROUPS) or block.get(NO_DECAY)) or block.get(LAYER_DECAY) is not None


def named_groups(groups: Any) -> dict[str, Any]:
    """Return ``optim.groups`` by name: those of a list are named by their numbers, from 0."""
    if isinstance(groups, list):
        groups = {str(number): group for number, group in enumerate(groups)}
    return dict(groups or {})


def parameter_groups(
    model: "nn.Module", block: Mapping[str, Any], owned: "Mapping[str, Tensor] | None" = None
) -> list[Group]:
    """Return what an optimizer takes: first the parameters of no group, then those of each group.

    Every group has a ``name``. With ``layer_decay`` a group is cut by the blocks of the model, and
    with ``no_decay`` once more.

    Args:
        model: The user's own, not what wraps it.
        block: The block ``optim``.
        owned: What the objective owns, by name.

    Raises:
        ConfigError: C147 if a group has no parameters, or shares some with another group, C310 for
            an entry of ``no_decay`` without parameters, C311 for ``layer_decay`` without a rate.
    """
    owned = owned or {}
    parameters = {**dict(model.named_parameters()), **owned}
    names = list(parameters)
    groups = named_groups(block.get(GROUPS))
    numbers = _group_numbers(groups, names)
    free = _without_decay(model, block.get(NO_DECAY) or [], names)
    blocks = _blocks(model, block)
    typed = {number for number, options in enumerate(groups.values(), 1) if "lr" in options}
    members: dict[GroupShare, list[Any]] = {}
    for name, parameter in parameters.items():
        number = numbers.get(name, len(groups) + 1 if name in owned else 0)
        place = ALL
        if blocks is not None and number not in typed and name not in owned:
            place = blocks.number_of[name]
        members.setdefault(GroupShare(number, place, name in free), []).append(parameter)
    result: list[Group] = []
    for share in sorted(members):
        group: Group = {"params": members[share], NAME: _label(share, groups)}
        if 0 < share.number <= len(groups):
            group |= _options(*list(groups.items())[share.number - 1], block)
        if blocks is not None and share.block != ALL:
            factor = block[LAYER_DECAY] ** (blocks.depth - 1 - share.block)
            group["lr"] = group.get("lr", block["lr"]) * factor
        if share.is_free:
            group["weight_decay"] = 0.0
        result.append(group)
    return result


def _group_numbers(groups: Mapping[str, Group], names: Sequence[str]) -> dict[str, int]:
    """Return the number of each grouped parameter's group, from 1, by the parameter's name."""
    number_of: dict[str, int] = {}
    for number, (name, options) in enumerate(groups.items(), 1):
        where = f"optim.groups.{name}.match = {options['match']}"
        members = matching(options["match"], names)
        if not members:
            first = options["match"]
            if not isinstance(first, str):
                first = next(iter(first), "")
            what = f"matches no parameter of the model; {what_model_has(first, names)}"
            fix = "give names of modules or parameters, with * for any part of them"
            raise ConfigError(147, where, what, fix)
        if taken := [member for member in members if member in number_of]:
            what = f"matches {taken[0]}, which another group has"
            raise ConfigError(147, where, what, "give each parameter to one group")
        number_of |= dict.fromkeys(members, number)
    return number_of


def _without_decay(
    model: "nn.Module", entries: Sequence[str], names: Sequence[str]
) -> frozenset[str]:
    """Return the names of the parameters that ``optim.no_decay`` frees from weight decay."""
    free: set[str] = set()
    for entry in entries:
        where = f"optim.no_decay = [{', '.join(entries)}]"
        own = set(matching(entry, names))
        what = f"{entry!r} matches no parameter; {what_model_has(entry, names)}"
        if entry == NORM:
            from framework.train.model_layers import normalization_parameters  # noqa: PLC0415  # loads torch

            own |= normalization_parameters(model) & set(names)
            what = f"the model has no parameters of normalization modules; {_has(names)}"
        elif entry == BIAS:
            own |= {name for name in names if name.endswith(BIAS)}
            what = f"no name of a parameter ends in bias; {_has(names)}"
        if not own:
            raise ConfigError(310, where, what, "correct or remove it")
        free |= own
    return frozenset(free)


def _has(names: Sequence[str]) -> str:
    return what_model_has("", names)


def _blocks(model: "nn.Module", block: Mapping[str, Any]) -> "ModelBlocks | None":
    """Return the blocks of the model if ``optim.layer_decay`` is set."""
    decay = block.get(LAYER_DECAY)
    if decay is None:
        return None
    if block.get("lr") is None:
        where = f"optim.layer_decay = {decay}"
        raise ConfigError(311, where, "is a factor on optim.lr, which is not set", "set optim.lr")
    from framework.train.model_layers import ModelBlocks  # noqa: PLC0415  # loads torch

    return ModelBlocks(model)


def _options(name: str, options: Group, block: Mapping[str, Any]) -> Group:
    """Return the options of a group in the optimizer's words."""
    own = {key: value for key, value in options.items() if key not in ("match", "lr_factor")}
    if "lr_factor" in options:
        if block.get("lr") is None:
            where = f"optim.groups.{name}.lr_factor = {options['lr_factor']}"
            what = "is a factor on optim.lr, which is not set"
            raise ConfigError(147, where, what, "set optim.lr")
        own["lr"] = block["lr"] * options["lr_factor"]
    return own


def _label(share: GroupShare, groups: Mapping[str, Group]) -> str:
    words = ["others" if groups else "all"]
    if share.number > len(groups):
        words = [GROUP]
    elif share.number:
        name, options = list(groups.items())[share.number - 1]
        words = [name]
        if name.isdigit() and isinstance(options["match"], str):  # a list's group has no name
            words = [options["match"]]
    if share.block != ALL:
        words.append(f"block {share.block}")
    if share.is_free:
        words.append("no decay")
    return ", ".join(words)


def check_options(optimizer: "optim.Optimizer", block: Mapping[str, Any]) -> None:
    """Check that the optimizer has every option that groups give. torch itself would ignore them.

    Raises:
        ConfigError: C102 for a group's option, C310 for ``no_decay``.
    """
    known = [*OWN, *(key for key in optimizer.defaults if key != "lr")]
    kind = type(optimizer).__name__
    for name, options in named_groups(block.get(GROUPS)).items():
        for key, value in options.items():
            if key not in known:
                where = f"optim.groups.{name}.{key} = {value}"
                what = f"neither {', '.join(OWN)} nor an option of {kind}"
                raise ConfigError(102, where, what, "correct or remove it")
    entries = block.get(NO_DECAY) or []
    if entries and "weight_decay" not in optimizer.defaults:
        where = f"optim.no_decay = [{', '.join(entries)}]"
        raise ConfigError(310, where, f"{kind} has no weight decay", "remove it")
