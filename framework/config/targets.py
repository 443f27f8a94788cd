"""Check what a configuration calls, and with which arguments, before torch is imported."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from framework.config.foreign_models import is_foreign, secured
from framework.config.paths import CONF
from framework.config.signature import classes_of, static_signature
from framework.errors import ConfigError, did_you_mean
from framework.train.parameter_groups import KEYS as OPTIM_KEYS

LAYERS = {"torch.nn": "torch.nn.modules"}
METRICS = ("classification", "detection", "regression", "segmentation")
# Packages whose classes a place takes, by the module that lists them.
LISTED: dict[str, Mapping[str, str]] = {
    "layers": LAYERS,
    "model": LAYERS,
    "optim": {"torch.optim": "torch.optim"},
    "schedule": {"torch.optim.lr_scheduler": "torch.optim.lr_scheduler"},
    "metrics": {f"torchmetrics.{name}": f"torchmetrics.{name}" for name in METRICS},
}
OWN_LAYERS = ("framework.model.airbench.Whitening",)  # which docs/model.md recommends
TARGET = re.compile(r"^[^#\n]*\b_target_: *([\w.]+)", re.MULTILINE)
BY_NAME = ("metrics", "sink", "watchers")  # places of several blocks by name
# Parts of ``data`` that are places of another kind. Objects of the user's have no list.
IN_DATA = {"source": "data", "writer": "output", "val_transform": "transform"}
# Values are always plain lists and dicts, as with Hydra's ``_convert_: all``.
OURS = "framework."
SPECIAL = {"_target_", "_args_", "_partial_", "_recursive_", "_convert_"}
STORE_INPUT = "framework.input.store.StoreInput"  # its ``add`` names a function
MARK_KEYS = ("labels", "values", "kinds")  # of every input, read by ``framework.pack.marked``
Config = dict[str, Any]


def check_name(where: str, target: Any, allowed: Sequence[str]) -> None:
    """Check that the block at ``where`` may call ``target``, a dotted name. ConfigError C105.

    ``allowed`` are the prefixes of the user's packages.
    """
    place, inside = _place(where)
    lists = [place]
    if inside:
        lists.append("model" if place == "objective" else "layers")  # a teacher is a model
    known = frozenset[str]().union(*map(_names, lists))
    if isinstance(target, str):
        module = LISTED.get(place, {}).get(target.rpartition(".")[0])
        if module is not None and not classes_of(module):
            return  # it is not installed, which importing it will say
        is_model = is_foreign(target) and "model" in lists
        if is_model or target in known or target.startswith(tuple(allowed)):
            return
    package = str(target).partition(".")[0]
    if not package.isidentifier():
        package = "its package"
    hint = did_you_mean(str(target), sorted(known), cutoff=0.85)
    what = f"not on the list of what {place} may call{hint}"
    fix = f"if you trust it, add 'allow_targets=[{package}]' on the command line"
    raise ConfigError(105, f"{where}._target_ = {target}", what, fix)


def _place(where: str) -> tuple[str, bool]:
    """Return the kind of the block at a dotted key, and whether it lies inside such a block."""
    parts = where.split(".")
    if parts[0] == "prepare" and "input" in parts:
        parts = parts[parts.index("input") :]
    if parts[0] == "data" and len(parts) > 1:
        parts = [IN_DATA.get(parts[1], "data.train"), *parts[2:]]
    return parts[0], len(parts) > (2 if parts[0] in BY_NAME else 1)


@cache
def _names(place: str) -> frozenset[str]:
    """Return what a kind of block may call, of ours and of installed libraries."""
    texts = [path.read_text(encoding="utf-8") for path in (CONF / place).glob("*.yaml")]
    names = {name for text in texts for name in TARGET.findall(text)}
    if place != "output":
        names -= _names("output")  # writers, of data that is packed on the way
    for package, module in LISTED.get(place, {}).items():
        names.update(f"{package}.{name}" for name in classes_of(module))
        if place == "metrics":  # most have their name in the package, too
            names.update(f"torchmetrics.{name}" for name in classes_of(module))
        if module == LAYERS["torch.nn"]:
            names.update(OWN_LAYERS)
    return frozenset(names)


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
        given = [str(key) for key in block if key not in SPECIAL]
        for key in given:
            if key.startswith("_") and key.endswith("_"):
                what = f"not a key Hydra knows{did_you_mean(key, sorted(SPECIAL), where)}"
                raise ConfigError(106, f"{where}.{key}", what, "correct or remove it")
        signature = static_signature(target)
        if signature is None or signature.open:
            continue
        names = signature.names
        if where == "optim":
            names = (*names, *OPTIM_KEYS)
        elif where == "schedule" and "optimizer" in names:  # a scheduler of torch
            names = (*names, "per")
        elif where == "schedule" and "warmup_steps" in names:
            names = (*names, "warmup_epochs")
        elif where == "input" or re.fullmatch(r"prepare\.\w+\.input", where):
            names = (*names, *MARK_KEYS)
        for key in given:
            if key not in names:
                what = f"{target} has no argument {key!r}{did_you_mean(key, names, where)}"
                fix = "correct or remove it"
                raise ConfigError(106, f"{where}.{key} = {block[key]}", what, fix)


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
