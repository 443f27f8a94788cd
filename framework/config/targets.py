"""Check what a configuration calls, and with which arguments, before torch is imported.

The files in ``CONF`` list what of this package may be called.
"""

import ast
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, NamedTuple

from framework.errors import ConfigError, did_you_mean
from framework.system.user_code import raise_if_user_error
from framework.train.parameter_groups import KEYS as OPTIM_KEYS
from framework.train.parameter_groups import PART_KEYS

_PACKAGE = Path(__file__).parent.parent
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent  # in a wheel, or a checkout
CONF = ROOT / "conf"
# Suffixes of the files that are stores, by their writers.
SUFFIXES = {
    "framework.store.hdf5_store.HDF5Writer": ".h5",
    "framework.store.lmdb_store.LMDBWriter": ".lmdb",
}
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
OURS = "framework."
SPECIAL = ("_target_", "_args_", "_partial_")
PLAIN_ORDER = ("block_records", "window_blocks")  # keys of an order without a _target_
MARK_KEYS = ("labels", "values", "kinds")  # of every input, read by ``framework.pack.marked``
UNFOLDED: dict[str, Any] = dict.fromkeys(("fold", "folds", "fold_by"))  # for all records
# Functions and classes of other libraries that only build a model.
ENTRIES = re.compile(
    r"timm\.create_model"
    r"|torchvision\.models\.((segmentation|detection|video)\.)?(?!get_|list_)[a-z]\w*"
    r"|transformers\.[A-Z]\w*(Config|Model|For[A-Z]\w*)(\.from_pretrained|\.from_config)?"
)
FOLDER = "pretrained_model_name_or_path"
# Keys of timm and torchvision that read weights. What stands in a list depends on the version.
LOADING = ("weights", "weights_backbone", "checkpoint_path", "cache_dir", "_args_")
# Keys of transformers whose other values download, unpickle or execute something.
SAFE = {"local_files_only": True, "trust_remote_code": False, "weights_only": True}
Config = dict[str, Any]


class Signature(NamedTuple):
    """The names of the parameters, and whether any other keyword is taken, too (``open``)."""

    names: tuple[str, ...]
    open: bool


def static_signature(target: str) -> Signature | None:
    """Return the signature of a class or function; None if its source does not tell.

    The source is read, and nothing is executed.
    """
    module, _, name = target.rpartition(".")
    path = _module_path(module, os.getcwd())
    return None if path is None else _find(path, name)


def parameters_of(target: Any) -> tuple[str, ...]:
    """Return the names of the parameters of a class or function, as far as its source tells."""
    signature = static_signature(str(target))
    return () if signature is None else signature.names


@cache
def _module_path(module: str, folder: str) -> Path | None:
    """Return the file of a module, without running its package."""
    package, *parts = module.split(".")
    try:  # the folder comes last, which is on the path only once the user allows packages there
        spec = importlib.util.find_spec(package) or PathFinder.find_spec(package, [folder])
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None or (parts and not spec.submodule_search_locations):
        return None
    base = Path(spec.origin)
    if parts:
        base = base.parent.joinpath(*parts)
    candidates = (base.with_suffix(".py"), base / "__init__.py")
    return next((path for path in candidates if path.is_file()), None)


@cache
def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"), str(path))
    except SyntaxError as error:
        raise_if_user_error(error)
        raise


def _find(path: Path, name: str) -> Signature | None:
    for node in _tree(path).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return _of_arguments(node.args)
        if isinstance(node, ast.ClassDef) and node.name == name:
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == "__init__":
                    names, is_open = _of_arguments(item.args)
                    return Signature(names[1:], is_open)
            if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
                fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
                return Signature(tuple(map(ast.unparse, fields)), open=False)
            if not node.bases:
                return Signature((), open=False)
            if len(node.bases) == 1 and isinstance(node.bases[0], ast.Name):
                return _find(path, node.bases[0].id)
            return None
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                if (alias.asname or alias.name) != name:
                    continue
                if not node.level:  # defined in that module
                    return static_signature(f"{node.module}.{alias.name}")
                base = path.parents[node.level - 1].joinpath(*node.module.split("."))
                files = (base.with_suffix(".py"), base / "__init__.py")
                return next((_find(file, alias.name) for file in files if file.is_file()), None)
    return None


def _of_arguments(arguments: ast.arguments) -> Signature:
    names = tuple(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return Signature(names, arguments.kwarg is not None)


def _classes_of(module: str) -> frozenset[str]:
    path = _module_path(module, os.getcwd())
    if path is None:
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Assign | ast.AugAssign) and isinstance(node.value, ast.List):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == "__all__":
                names.update(ast.unparse(name).strip("'") for name in node.value.elts)
    return frozenset(name for name in names if name[0].isupper())


def is_foreign(target: Any) -> bool:
    return isinstance(target, str) and ENTRIES.fullmatch(target) is not None


def is_from_folder(target: Any) -> bool:
    """Return whether a name is that of a model of transformers with the weights in a folder."""
    return is_foreign(target) and target.endswith(".from_pretrained") and "Config." not in target


def secured(where: str, block: Config, allowed: Sequence[str]) -> Config:
    """Return the block of a model of another library, with the arguments that make it safe.

    ConfigError C302 for an argument that downloads, unpickles or executes something, unless the
    package is ``allowed``, C303 for a folder that is not there.
    """
    target = block.get("_target_")
    if not is_foreign(target):
        return block
    package, _, name = str(target).partition(".")
    is_allowed = f"{package}.".startswith(tuple(allowed))
    unsafe: list[str] = []
    safe: Config = {}
    if package != "transformers":
        if package == "timm" and (arguments := list(block.get("_args_") or [])) and not is_allowed:
            block = {**block, "model_name": arguments[0], "_args_": arguments[1:]}
        loads = [key for key in block if key.startswith("pretrained") or key in LOADING]
        unsafe += [key for key in loads if block[key]]
        unsafe += ["model_name"] if ":" in str(block.get("model_name", "")) else []
        if name.startswith(("models.segmentation.", "models.detection.")) and not is_allowed:
            safe = {"weights_backbone": None}  # its default is downloaded
    elif name.endswith((".from_pretrained", ".from_config")):
        safe = dict(SAFE)
        if not is_from_folder(target):
            del safe["weights_only"]
        if name.endswith(".from_config"):
            del safe["local_files_only"]
        unsafe += [key for key in safe if block.get(key, safe[key]) != safe[key]]
        if "/" in str(block.get("attn_implementation", "")):
            unsafe.append("attn_implementation")
    if unsafe and not is_allowed:
        what = "would download, unpickle or execute something"
        trust = f"if you trust it, add 'allow_targets=[{package}]' on the command line"
        fix = f"give the weights as init=FILE, or {trust}"
        raise ConfigError(302, f"{where}.{unsafe[0]} = {block[unsafe[0]]}"[:200], what, fix)
    if name.endswith(".from_pretrained"):
        folder = block.get(FOLDER) or next(iter(block.get("_args_") or []), None)
        if not os.path.isdir(str(folder)):
            what = "is no folder here, and Paceline downloads no model"
            fix = "download it before, with 'hf download NAME --local-dir FOLDER'; give the folder"
            raise ConfigError(303, f"{where}.{FOLDER} = {folder}"[:200], what, fix)
    if is_from_folder(target):
        safe["ignore_mismatched_sizes"] = True  # a head for other classes; all else is refused
    return {**safe, **block}


def check_name(where: str, target: Any, allowed: Sequence[str]) -> None:
    """Check that the block at ``where`` may call ``target``, a dotted name. ConfigError C105.

    ``allowed`` are the prefixes of the user's packages.
    """
    parts = where.split(".")
    if parts[0] == "prepare" and "input" in parts:
        parts = parts[parts.index("input") :]
    if parts[0] == "data" and len(parts) > 1:
        parts = [IN_DATA.get(parts[1], "data.train"), *parts[2:]]
    place = parts[0]
    lists = [place]
    if len(parts) > (2 if place in BY_NAME else 1):  # inside such a block
        lists.append("model" if place == "objective" else "layers")  # a teacher is a model
    known = frozenset[str]().union(*map(_names, lists))
    if isinstance(target, str):
        module = LISTED.get(place, {}).get(target.rpartition(".")[0])
        if module is not None and not _classes_of(module):
            return  # it is not installed, which importing it will say
        is_model = is_foreign(target) and "model" in lists
        if is_model or target in known or target.startswith(tuple(allowed)):
            return
    package = str(target).partition(".")[0]
    hint = did_you_mean(str(target), sorted(known), cutoff=0.85)
    what = f"not on the list of what {place} may call{hint}"
    fix = f"if you trust it, add 'allow_targets=[{package}]' on the command line"
    if os.path.isdir(package) or os.path.isfile(f"{package}.py"):
        fix += ", or trust this folder once: 'paceline trust'"
    raise ConfigError(105, f"{where}._target_ = {target}", what, fix)


@cache
def _names(place: str) -> frozenset[str]:
    texts = [path.read_text(encoding="utf-8") for path in (CONF / place).glob("*.yaml")]
    names = {name for text in texts for name in TARGET.findall(text)}
    if place != "output":
        names -= _names("output")  # writers, of data that is packed on the way
    for package, module in LISTED.get(place, {}).items():
        names.update(f"{package}.{name}" for name in _classes_of(module))
        if place == "metrics":  # most have their name in the package, too
            names.update(f"torchmetrics.{name}" for name in _classes_of(module))
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
    for name, block in walk(node, where):
        if isinstance(block, dict) and "_target_" in block:
            yield name, block


def check_targets(config: Config, allowed: Sequence[str]) -> None:
    """Check every block's name and arguments, unimported. ConfigError C105 or C106.

    Nothing is built of ``vars``: a block there is checked at each place that refers to it.
    """
    for where, block in targets({key: part for key, part in config.items() if key != "vars"}):
        target = block["_target_"]
        check_name(where, target, allowed)
        secured(where, block, allowed)
        if block.get("_args_") and target.startswith(OURS):
            what = f"{target} takes arguments by name alone"
            raise ConfigError(106, f"{where}._args_", what, "give each by its name")
        signature = static_signature(target)
        if signature is None or signature.open:
            continue
        names = (*signature.names, *SPECIAL)
        if where == "optim":
            names += OPTIM_KEYS
        elif re.fullmatch(r"optim\.parts\.\w+", where):
            names += PART_KEYS
        elif where == "schedule" and "optimizer" in names:  # a scheduler of torch
            names += ("per",)
        elif where == "schedule" and "warmup_steps" in names:
            names += ("warmup_epochs",)
        elif where == "input" or re.fullmatch(r"prepare\.\w+\.input", where):
            names += MARK_KEYS
        for key in map(str, block):
            if key not in names:
                what = f"{target} has no argument {key!r}{did_you_mean(key, names, where)}"
                fix = "correct or remove it"
                raise ConfigError(106, f"{where}.{key} = {block[key]}", what, fix)


def makes_data(data: Config) -> bool:
    """Return whether ``data.train`` and ``data.val`` describe objects, and not paths.

    The source says so: it has a parameter ``data``, and not ``path``.
    """
    return "data" in parameters_of(data["source"]["_target_"])


def val_sets(data: Config, key: str = "val") -> dict[str, Any]:
    """Return what ``data.val`` gives for each validation set by its name; a single one is ``""``.

    There are several if ``data.val`` maps names to what one set may be: a path, a block that makes
    an object, or with ``data=mixture``, paths by name. The key of ``data.test`` is ``test``.
    """
    val = data.get(key)
    if not val:
        return {}
    is_single = not isinstance(val, dict) or "_target_" in val
    if not is_single and "weights" in data["source"]:  # paths by name are one set of a mixture
        is_single = not all(isinstance(given, dict) for given in val.values())
    return {"": val} if is_single else dict(val)


def split_of(name: str, key: str = "val") -> str:
    """Return the split of the validation set ``name``: ``val``, or ``val.NAME``."""
    return f"{key}.{name}" if name else key


def data_name(given: Any) -> str:
    """Return how messages call what ``data.train`` or ``data.val`` is: its path or its class."""
    if isinstance(given, dict):
        return str(given.get("_target_") or ", ".join(map(str, given.values())))
    return str(given)


def completed(config: Config) -> Config:
    """Return a configuration with what its options imply.

    A function that ``data.collate`` names becomes a block, and folds of the training data validate.
    A sampler is not given the keys of the order that it replaces.
    """
    data, order = config["data"], config["order"]
    if "_target_" in order:
        order = {key: value for key, value in order.items() if key not in PLAIN_ORDER}
        config = {**config, "order": order}
    if makes_data(data) and isinstance(name := data["source"].get("collate"), str):
        block = {"_target_": name, "_partial_": True}
        data = {**data, "source": {**data["source"], "collate": block}}
    if config["folds"] is None:
        return {**config, "data": data}
    prepare = {split: own for split, own in (config["prepare"] or {}).items() if split != "val"}
    return {**config, "data": {**data, "val": data["train"]}, "prepare": prepare or None}


def as_prefixes(packages: Sequence[str]) -> tuple[str, ...]:
    """Return package names as prefixes: ``mypkg`` allows ``mypkg.Net``, but not ``mypkg2.Net``."""
    return tuple(name if name.endswith(".") else f"{name}." for name in packages if name)
