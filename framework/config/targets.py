"""Check what a configuration calls, and with which arguments, before torch is imported."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from framework.config.foreign_models import secured
from framework.config.names import check_name
from framework.config.signature import static_signature
from framework.errors import ConfigError, did_you_mean
from framework.train.parameter_groups import KEYS as OPTIM_KEYS

# Values are always plain lists and dicts, as with Hydra's ``_convert_: all``.
OURS = ("framework.", "paceline_examples.")
SPECIAL = {"_target_", "_args_", "_partial_", "_recursive_", "_convert_"}
STORE_INPUT = "framework.input.store.StoreInput"  # its ``add`` names a function
MARK_KEYS = ("labels", "values", "kinds")  # of every input, read by ``framework.pack.marked``
Config = dict[str, Any]


def walk(node: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of ``node`` and of everything inside it."""
    yield where, node
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        for name, value in node.items():
            yield from walk(value, f"{where}.{name}" if where else str(name))


def targets(node: Any, where: str = "") -> Iterator[tuple[str, Config]]:
    """Yield the dotted name of every block with a ``_target_``, and the block."""
    for name, block in walk(node, where):
        if isinstance(block, dict) and "_target_" in block:
            yield name, block


def check_targets(config: Config, allowed: Sequence[str]) -> None:
    """Check every block's name and arguments, unimported. ConfigError C105 or C106."""
    for where, block in targets(config):
        target = block["_target_"]
        check_name(where, target, allowed)
        secured(where, block, allowed)
        if block.get("_args_") and target.startswith(OURS):
            what = f"{target} takes arguments by name alone"
            raise ConfigError(106, f"{where}._args_", what, "give each by its name")
        signature = static_signature(target)
        names = None
        if signature is not None and not signature.open:
            names = (*signature.names, *_more_keys(where, signature.names))
        _check_keys(where, block, names)


def _check_keys(where: str, block: Config, names: Sequence[str] | None) -> None:
    """Check a block's keys. ``names`` are the arguments of its target; None: it takes any."""
    target = block["_target_"]
    given = [str(key) for key in block if key not in SPECIAL]
    for key in given:
        if key.startswith("_") and key.endswith("_"):
            what = f"not a key Hydra knows{did_you_mean(key, sorted(SPECIAL), where)}"
            raise ConfigError(106, f"{where}.{key}", what, "correct or remove it")
    for key in given:
        if names is not None and key not in names:
            what = f"{target} has no argument {key!r}{did_you_mean(key, names, where)}"
            raise ConfigError(106, f"{where}.{key} = {block[key]}", what, "correct or remove it")


def _more_keys(where: str, own: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of a block that are not among its target's own."""
    if where == "optim":
        return OPTIM_KEYS
    if where == "schedule" and "optimizer" in own:  # a scheduler of torch
        return ("per",)
    if where == "schedule" and "warmup_steps" in own:
        return ("warmup_epochs",)
    if where == "input" or re.fullmatch(r"prepare\.\w+\.input", where):
        return MARK_KEYS
    return ()


def makes_data(data: Config) -> bool:
    """Return whether ``data.train`` and ``data.val`` describe objects, and not paths.

    The source says so: it has a parameter ``data``, and not ``path``.
    """
    signature = static_signature(str(data["source"]["_target_"]))
    return signature is not None and "data" in signature.names


def val_sets(data: Config) -> dict[str, Any]:
    """Return what ``data.val`` gives for each validation set by its name.

    A single set without a name is called ``""``. There are several if ``data.val`` maps names to
    what one set may be: the path of a store, a block that makes an object, or with
    ``data=mixture``, the paths of stores by name.
    """
    val = data.get("val")
    if not val:
        return {}
    is_single = not isinstance(val, dict) or "_target_" in val
    if not is_single and "weights" in data["source"]:  # paths by name are one set of a mixture
        is_single = not all(isinstance(given, dict) for given in val.values())
    return {"": val} if is_single else dict(val)


def split_of(name: str) -> str:
    """Return the split of the validation set ``name``: ``val``, or ``val.NAME``."""
    return f"val.{name}" if name else "val"


def data_name(given: Any) -> str:
    """Return how messages call what ``data.train`` or ``data.val`` is: its path or its class."""
    if isinstance(given, dict):
        return str(given.get("_target_") or ", ".join(map(str, given.values())))
    return str(given)


def with_functions(config: Config) -> Config:
    """Return a configuration whose ``data.collate`` is a block, if it names a function."""
    source = config["data"]["source"]
    name = source.get("collate")
    if not isinstance(name, str) or not makes_data(config["data"]):
        return config
    source = {**source, "collate": {"_target_": name, "_partial_": True}}
    return {**config, "data": {**config["data"], "source": source}}


def with_added(block: Config) -> Config:
    """Return the block of an input whose ``add`` is a block, if it names a function."""
    name = block.get("add")
    if block.get("_target_") != STORE_INPUT or not isinstance(name, str):
        return block
    return {**block, "add": {"_target_": name, "_partial_": True}}


UNFOLDED: Config = dict.fromkeys(("fold", "folds", "fold_by"))  # the keys of all records


def with_folds(config: Config) -> Config:
    """Return a configuration that validates on the training data, if that is cut into folds."""
    if config["folds"] is None:
        return config
    prepare = config["prepare"]
    if prepare:
        prepare = {split: block for split, block in prepare.items() if split != "val"}
    return {
        **config,
        "data": {**config["data"], "val": config["data"]["train"]},
        "prepare": prepare,
    }


def as_prefixes(packages: Sequence[str]) -> tuple[str, ...]:
    """Return package names as prefixes: ``mypkg`` allows ``mypkg.Net``, but not ``mypkg2.Net``."""
    return tuple(name if name.endswith(".") else f"{name}." for name in packages if name)
