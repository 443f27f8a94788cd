"""What a configuration may call, and with which arguments; checked before torch is imported or anything is made."""

import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

from framework.config.signature import static_signature
from framework.errors import ConfigError
from framework.train.lr_scaling import KEYS as SCALING_KEYS

TORCH = ("torch.nn.", "torch.optim.")
GROUPS = (
    *(
        "augment",
        "data",
        "input",
        "loader",
        "model",
        "objective",
        "parallel",
        "precision",
        "schedule",
        "sink",
    ),
    *("store", "transform"),
)
_PART = re.compile(
    rf"framework\.({'|'.join(GROUPS)})\.\w+\.([A-Z]\w*|(\w+_)?source)|paceline_examples\.\w+\.[A-Za-z]\w*"
)
SPECIAL = {"_target_", "_args_", "_partial_", "_recursive_", "_convert_"}
MARK_KEYS = (
    "labels",
    "values",
)  # of an input's block, which every input takes: they are for ``framework.pack.marked``
Config = dict[str, Any]


def targets(node: Any, where: str = "") -> Iterator[tuple[str, Config]]:
    """(dotted place, block) of every block with a ``_target_``."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield where, node
        for name, value in node.items():
            yield from targets(value, f"{where}.{name}" if where else str(name))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from targets(value, f"{where}.{number}")


def check_targets(config: Config, allowed: Sequence[str]) -> None:
    """Check every block's name and arguments, without importing anything. ConfigError C105 or C106."""
    for where, block in targets(config):
        target = block["_target_"]
        check_name(where, target, allowed)
        signature = static_signature(target)
        given = [str(key) for key in block if key not in SPECIAL]
        if unknown_special := [key for key in given if key.startswith("_") and key.endswith("_")]:
            what = (
                f"not a key Hydra knows{did_you_mean(unknown_special[0], sorted(SPECIAL), where)}"
            )
            raise ConfigError(106, f"{where}.{unknown_special[0]}", what, "correct or remove it")
        if signature is None or signature.open:
            continue
        names = (*signature.names, *_more_keys(where))
        for key in given:
            if key not in names:
                what = f"{target} has no argument {key!r}{did_you_mean(key, names, where)}"
                raise ConfigError(
                    106, f"{where}.{key} = {block[key]}", what, "correct or remove it"
                )


def _more_keys(where: str) -> tuple[str, ...]:
    """Keys of a block that are not its target's own."""
    if where == "optim":
        return SCALING_KEYS
    return MARK_KEYS if where == "input" or re.fullmatch(r"prepare\.\w+\.input", where) else ()


def is_allowed(name: str, allowed: Sequence[str]) -> bool:
    """Whether a dotted name is on the list. Of ours only parts are: classes, sources, makers of records. Another function, such as one that starts processes, would do
    what it does for whoever names it.
    """
    return name.startswith((*TORCH, *allowed)) or _PART.fullmatch(name) is not None


def check_name(where: str, target: Any, allowed: Sequence[str]) -> None:
    """ConfigError C105 where a name is not on the allow-list."""
    if not isinstance(target, str) or not is_allowed(target, allowed):
        what = "not on the list of what a configuration may call"
        raise ConfigError(
            105,
            f"{where}._target_ = {target}",
            what,
            "if you trust it, add allow_targets=[its package] on the command line",
        )


def did_you_mean(word: str, known: Sequence[str], prefix: str = "") -> str:
    """`` (did you mean 'x'?)`` with the nearest of ``known``, or nothing."""
    close = get_close_matches(word, known, n=1, cutoff=0.5)
    return f" (did you mean '{prefix + '.' if prefix else ''}{close[0]}'?)" if close else ""


def as_prefixes(packages: Sequence[str]) -> tuple[str, ...]:
    """Package names as prefixes of dotted names: ``mypkg`` allows ``mypkg.Net``, not ``mypkg2.Net``."""
    return tuple(name if name.endswith(".") else f"{name}." for name in packages if name)
