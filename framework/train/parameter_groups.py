"""What the block ``optim`` says of parameters and of the learning rate, before torch is loaded.

A group has the patterns of its parameters' names in ``match``, and any of these options: ``lr`` in
place of ``optim.lr``, ``lr_factor`` on it, ``until`` (the share of all steps after which its rate
is 0), and options of the optimizer, such as ``weight_decay``. A part has ``match``, too, and what
else ``optim`` may have: an optimizer with its options, and groups.

Source:
    ``scaling=linear``: Goyal et al., "Accurate, large minibatch SGD", 2017. ``sqrt``, as the noise
    of a mean falls with the root of its size: Krizhevsky, "One weird trick", 2014.
    ``until``: progressive freezing, Brock et al., "FreezeOut", 2017. ``layer_decay``: Clark et al.,
    "ELECTRA", 2020, and Bao et al., "BEiT", 2021.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple, final

from framework.errors import ConfigError

if TYPE_CHECKING:  # configurations are checked before torch is loaded
    from torch import Tensor, nn, optim

GROUPS = "groups"
NO_DECAY = "no_decay"
LAYER_DECAY = "layer_decay"
PARTS = "parts"
# keys of ``optim`` that are not the optimizer's own
KEYS = ("scaling", "reference_batch_size", GROUPS, NO_DECAY, LAYER_DECAY, PARTS)
# keys of one of its parts that are not the optimizer's own
PART_KEYS = ("match", GROUPS, NO_DECAY, LAYER_DECAY)
PART = "part"  # in a group: the name of its part
OTHERS = "others"  # the parameters that no part has
# how the rate is scaled: the power of the ratio of the batch sizes
SCALINGS = {"none": 0.0, "linear": 1.0, "sqrt": 0.5, "cube_root_squared": 2 / 3}
UNTIL = "until"
NAME = "name"  # of an optimizer's group, for people
GROUP = "objective"  # the name of the group of what the objective owns
OWN = ("match", "lr", "lr_factor", UNTIL)  # keys of a group that every optimizer has
NORM, BIAS = "norm", "bias"  # in ``no_decay``: of normalization modules; whose names end so
ALL = -1  # in place of the number of a block
MOST_SHOWN = 12  # names in a message

Group = dict[str, Any]
Thaws = dict[str, int | None]  # the step from which on each frozen parameter is trained, if any


class Scaling(NamedTuple):
    """How the learning rate and the warm-up are scaled."""

    rule: str  # a name in ``SCALINGS``
    reference: int  # the batch size that the configured rate and warm-up are meant for
    batch_size: int

    @property
    def factor(self) -> float:
        return (self.batch_size / self.reference) ** SCALINGS[self.rule]

    def steps(self, count: int) -> int:
        """Return the optimizer steps over the records of ``count`` reference batches."""
        if self.rule == "none":
            return count
        return max(min(count, 1), round(count * self.reference / self.batch_size))

    def effective(self, optim: dict[str, Any], schedule: dict[str, Any]) -> dict[str, float]:
        """Return ``batch_size``, and the scaled ``lr`` and ``warmup_steps`` if they are set."""
        scaled: dict[str, float] = {"batch_size": self.batch_size}
        if isinstance(optim.get("lr"), int | float):
            scaled["lr"] = optim["lr"] * self.factor
        if "warmup_steps" in schedule:
            scaled["warmup_steps"] = self.steps(schedule["warmup_steps"])
        return scaled


def matching(patterns: str | Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the names that patterns match, or whose modules they match: ``head``, ``*.norm?``."""
    patterns = [patterns] if isinstance(patterns, str) else patterns
    matched: list[str] = []
    for name in names:
        parts = name.split(".")
        places = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        if any(fnmatchcase(place, pattern) for pattern in patterns for place in places):
            matched.append(name)
    return matched


def what_model_has(pattern: str, names: Iterable[str]) -> str:
    """Return the part of a message with the names inside the innermost module of a pattern."""
    prefix = f"{pattern}."
    inside: list[str] = []
    while prefix and not inside:  # without its last part, as long as no module has that name
        prefix = "".join(f"{part}." for part in prefix.split(".")[:-2])
        inside = [name for name in names if name.startswith(prefix)]
    depth = prefix.count(".") + 1
    near = list(dict.fromkeys(".".join(name.split(".")[:depth]) for name in inside))
    if len(near) > MOST_SHOWN:
        near[MOST_SHOWN:] = ["..."]
    return f"the model has {', '.join(near)}"


def optimizer_keys(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the block ``optim``, or that of a part, with the optimizer's own keys only."""
    return {key: value for key, value in block.items() if key not in (*KEYS, *PART_KEYS)}


def named_groups(groups: Any) -> dict[str, Any]:
    """Return ``optim.groups`` by name: those of a list are named by their numbers, from 0."""
    if isinstance(groups, list):
        return {str(number): group for number, group in enumerate(groups)}
    return dict(groups or {})


def part_blocks(optim: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the blocks of ``optim.parts`` with all options of their optimizers.

    A part that names no other optimizer has that of ``optim`` with its options.
    """
    common = optimizer_keys(optim)
    blocks: dict[str, dict[str, Any]] = {}
    for name, part in (optim.get(PARTS) or {}).items():
        is_same = part.get("_target_", common.get("_target_")) == common.get("_target_")
        blocks[name] = {**common, **part} if is_same else dict(part)
    return blocks


def parts_of(optim: Mapping[str, Any], names: Sequence[str]) -> dict[str, list[str]]:
    """Return which of the parameters ``names`` each part has; ``others`` are in none.

    ConfigError C362 for a part without parameters, or that shares some, or for options of
    parameters that are in no part if there are none.
    """
    parts: dict[str, list[str]] = {}
    left = dict.fromkeys(names)
    for part, block in part_blocks(optim).items():
        match = block["match"]
        where = f"optim.parts.{part}.match = {match}"
        parts[part] = matching(match, names)
        if not parts[part]:
            first = match if isinstance(match, str) else next(iter(match), "")
            what = f"matches no parameter of the model; {what_model_has(first, names)}"
            raise ConfigError(
                362, where, what, "give names of modules, with * for any part of them"
            )
        if shared := [name for name in parts[part] if name not in left]:
            what = f"matches {shared[0]}, which another part has"
            raise ConfigError(362, where, what, "give each parameter to one part")
        for name in parts[part]:
            del left[name]
    if left:
        return {**parts, OTHERS: list(left)}
    for key in (GROUPS, NO_DECAY, LAYER_DECAY):
        if optim.get(key):
            what = "is for the parameters of no part, and every one is in a part"
            raise ConfigError(362, f"optim.{key} = {optim[key]}"[:200], what, "give it to a part")
    return parts


def thaws_of(freeze: Any) -> Thaws:
    """Return ``freeze`` by pattern, with the step at which each thaws; None if it never does."""
    return dict(freeze) if isinstance(freeze, Mapping) else dict.fromkeys(freeze or [])


def parameter_groups(
    model: "nn.Module",
    block: Mapping[str, Any],
    owned: "Mapping[str, Tensor] | None" = None,
    only: Sequence[str] | None = None,
    part: str = "",
) -> list[Group]:
    """Return what an optimizer takes: first the parameters of no group, then those of each group.

    Every group has a ``name``. With ``layer_decay`` a group is cut by the blocks of the model, and
    with ``no_decay`` once more.

    Args:
        model: The user's own.
        block: The block ``optim``, or that of a part.
        owned: What the objective owns, by name.
        only: The names of the parameters of ``part``; None: all.
        part: The name of the part; "" for ``optim`` itself.

    ConfigError C147 for a group without parameters, or that shares some, C310 for an entry of
    ``no_decay`` without parameters, C311 for ``layer_decay`` without a rate.
    """
    owned = owned or {}
    parameters = {**dict(model.named_parameters()), **owned}
    if only is not None:
        parameters = {name: parameters[name] for name in only}
    names = list(parameters)
    optim = f"optim.parts.{part}" if part else "optim"
    groups = named_groups(block.get(GROUPS))
    # the number of each parameter's group, from 1; 0 for those of no group
    numbers = dict.fromkeys(owned, len(groups) + 1)
    grouped: set[str] = set()
    for number, (name, options) in enumerate(groups.items(), 1):
        match = options["match"]
        where = f"{optim}.groups.{name}.match = {match}"
        own_names = matching(match, names)
        if not own_names:
            first = match if isinstance(match, str) else next(iter(match), "")
            what = f"matches no parameter of the model; {what_model_has(first, names)}"
            fix = "give names of modules or parameters, with * for any part of them"
            raise ConfigError(147, where, what, fix)
        if taken := [name for name in own_names if name in grouped]:
            what = f"matches {taken[0]}, which another group has"
            raise ConfigError(147, where, what, "give each parameter to one group")
        grouped |= set(own_names)
        numbers |= dict.fromkeys(own_names, number)
    free = _without_decay(model, block.get(NO_DECAY) or [], names, optim)
    typed = {number for number, options in enumerate(groups.values(), 1) if "lr" in options}
    decay, blocks, rate = block.get(LAYER_DECAY), None, block.get("lr")
    what = f"is a factor on {optim}.lr, which is not set"
    places: dict[int, int] = {}  # of the blocks that have some of the parameters, by their numbers
    if decay is not None:
        if rate is None:
            raise ConfigError(311, f"{optim}.layer_decay = {decay}", what, f"set {optim}.lr")
        blocks = ModelBlocks(model)
        used = {blocks.number_of[name] for name in names if name not in owned}
        places = {number: place for place, number in enumerate(sorted(used))}
    # by the number of the group, that of the block, and whether they have no weight decay
    members: dict[tuple[int, int, bool], list[Any]] = {}
    for name, parameter in parameters.items():
        number, place = numbers.get(name, 0), ALL
        if blocks is not None and number not in typed and name not in owned:
            place = places[blocks.number_of[name]]
        members.setdefault((number, place, name in free), []).append(parameter)
    rest = "all" if only is None and not groups else OTHERS
    every = [(rest, {}), *groups.items(), (GROUP, {})]
    result: list[Group] = []
    for (number, place, is_free), own_parameters in sorted(members.items(), key=lambda x: x[0]):
        name, options = every[number]
        own: Group = {key: options[key] for key in options if key not in ("match", "lr_factor")}
        if "lr_factor" in options:
            if rate is None:
                where = f"{optim}.groups.{name}.lr_factor = {options['lr_factor']}"
                raise ConfigError(147, where, what, f"set {optim}.lr")
            own["lr"] = rate * options["lr_factor"]
        words = [name]
        if name.isdigit() and isinstance(options["match"], str):  # a list's group has no name
            words = [options["match"]]
        if part:
            words = [part, *words] if groups or number else [part]
        if only is not None:
            own[PART] = part or OTHERS
        if decay is not None and blocks is not None and place != ALL:
            words.append(f"block {place}")
            own["lr"] = own.get("lr", rate) * decay ** (len(places) - 1 - place)
        if is_free:
            words.append("no decay")
            own["weight_decay"] = 0.0
        result.append({"params": own_parameters, NAME: ", ".join(words), **own})
    return result


def _without_decay(
    model: "nn.Module", entries: Sequence[str], names: Sequence[str], optim: str
) -> set[str]:
    free: set[str] = set()
    for entry in entries:
        own = set(matching(entry, names))
        what = f"{entry!r} matches no parameter; {what_model_has(entry, names)}"
        if entry == NORM:
            for place, module in model.named_modules():
                if is_normalization(module):
                    inside = [name for name, _ in module.named_parameters(place, recurse=False)]
                    own |= set(inside) & set(names)
            has = what_model_has("", names)
            what = f"the model has no parameters of normalization modules; {has}"
        elif entry == BIAS:
            own |= {name for name in names if name.endswith(BIAS)}
            what = f"no name of a parameter ends in bias; {what_model_has('', names)}"
        if not own:
            where = f"{optim}.no_decay = [{', '.join(entries)}]"
            raise ConfigError(310, where, what, "correct or remove it")
        free |= own
    return free


def is_normalization(module: "nn.Module") -> bool:
    """Return whether a class has ``Norm`` in its name and parameters of one dimension at most."""
    own = list(module.parameters(recurse=False))
    return "Norm" in type(module).__name__ and all(weight.dim() <= 1 for weight in own)


@final
class ModelBlocks:
    """The blocks of a model in the order in which it names them.

    The model itself is opened. So is a Sequential or a list with modules that have parts, and a
    module with such a list of modules inside. Everything else is a block. A normalization module
    belongs to the block before it, and a parameter of an opened module to the block after it.
    """

    def __init__(self, model: "nn.Module") -> None:
        self.names: list[str] = []  # of each block's first module
        self.number_of: dict[str, int] = {}  # from 0, of each parameter's block, by its name
        self._open(model, "")
        self.depth = max(1, len(self.names))
        self.number_of = {name: min(n, self.depth - 1) for name, n in self.number_of.items()}

    def _open(self, module: "nn.Module", prefix: str) -> None:
        from torch import nn  # noqa: PLC0415  # configurations are checked before torch is loaded

        containers = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
        for name, _ in module.named_parameters(recurse=False):
            self.number_of[f"{prefix}{name}"] = len(self.names)
        for name, child in module.named_children():
            place = f"{prefix}{name}"
            if next(child.parameters(), None) is None:
                continue
            if isinstance(child, containers):
                is_opened = any(list(part.children()) for part in child.children())
            else:
                is_opened = any(
                    list(part.children()) and not isinstance(part, containers)
                    for inner in child.modules()
                    if isinstance(inner, containers)
                    for part in inner.children()
                )
            if is_opened:
                self._open(child, f"{place}.")
                continue
            if not (self.names and is_normalization(child)):
                self.names.append(place)
            for inner, _ in child.named_parameters():
                self.number_of[f"{place}.{inner}"] = len(self.names) - 1


def check_options(
    optimizer: "optim.Optimizer", block: Mapping[str, Any], place: str = "optim"
) -> None:
    """Check that the optimizer has the options of groups (C102) and ``no_decay`` (C310).

    ``place`` names the block in messages.
    """
    known = [*OWN, *(key for key in optimizer.defaults if key != "lr")]
    kind = type(optimizer).__name__
    for name, options in named_groups(block.get(GROUPS)).items():
        for key, value in options.items():
            if key not in known:
                where = f"{place}.groups.{name}.{key} = {value}"
                what = f"neither {', '.join(OWN)} nor an option of {kind}"
                raise ConfigError(102, where, what, "correct or remove it")
    entries = block.get(NO_DECAY) or []
    if entries and "weight_decay" not in optimizer.defaults:
        where = f"{place}.no_decay = [{', '.join(entries)}]"
        raise ConfigError(310, where, f"{kind} has no weight decay", "remove it")
