"""Start a model from somebody's weights: the block ``init``."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import file_digest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from framework.config.targets import FOLDER, Config
from framework.errors import CheckpointError, ConfigError, did_you_mean, listed, words_of
from framework.objective.distill import Distill
from framework.train.weights import read_weights, weights_path

FEW = 4  # names in a message
DIGEST = "digest"  # of the file, in the block ``init``
ALL = "*"  # stands for every name in ``init.rename``, to which it gives a prefix
CLASSES = ("num_classes", "num_labels", "out_features")  # arguments that size a head
Weights = Mapping[str, Tensor]


def with_saved_digest(config: Config, state: Mapping[str, Any]) -> Config:
    """Return the configuration of a resumed run, which does not read the file of ``init`` again."""
    return {**config, "init": {**config["init"], DIGEST: state["init"]}}


def with_digest(config: Config) -> tuple[Config, Path | None]:
    """Return the configuration with the digest of the file of ``init``, and the file to start from.

    The file is None without ``init``, and for a resumed run. CheckpointError K110, K111.
    """
    choice = config["init"]
    if choice["weights"] is None or DIGEST in choice:
        return config, None
    path = weights_path(choice["weights"], choice["average"])
    try:
        with open(path, "rb") as file:
            digest = file_digest(file, "sha256").hexdigest()
    except OSError as error:
        fix = "give a file that can be read"
        raise CheckpointError(111, str(path), f"cannot be read: {error.strerror}", fix) from error
    return {**config, "init": {**choice, DIGEST: digest}}, path


def start_from_weights(model: nn.Module, path: Path, config: Config, num_classes: int) -> str:
    """Copy the weights in a file into the model, before it is wrapped. Return a note.

    The names in the file must be those of the model. Only a head for another number of classes, and
    what ``init.skip`` names, stay as the model was built. Nothing is copied if something does not
    fit. The data has ``num_classes``, 0 if it names none. CheckpointError K110 to K116, ConfigError
    C300 for a name in ``init.skip`` or ``init.rename`` that nothing has.
    """
    choice = config["init"]
    rename = choice["rename"] or {}
    own: dict[str, Tensor] = model.state_dict()
    old = [f"{prefix}." for prefix in rename]  # what the names in the file may begin with
    weights = _renamed(read_weights(path, choice["average"], [*own, *old]), rename)
    names, skipped = {*own, *weights}, set[str]()
    for pattern in choice["skip"]:
        named = {n for n in names if n.startswith(f"{pattern}.") or fnmatchcase(n, pattern)}
        if not named:
            raise _unknown(f"init.skip = [{pattern}]", pattern, names)
        skipped |= named
    common = [name for name in own if name in weights and name not in skipped]
    typed = (config["model"].get(key) for key in CLASSES)
    sized = next((size for size in typed if type(size) is int), num_classes)
    last_module = next(reversed(list(own)), "").rpartition(".")[0]
    heads: list[str] = []  # of which only the number of classes differs, the first size
    for name in common:
        here, there = own[name].shape, weights[name].shape
        differs = here != there and here and len(here) == len(there) and here[1:] == there[1:]
        is_last = name.rpartition(".")[0] == last_module
        if differs and (here[0] == sized if sized else is_last):
            heads.append(name)
    loaded = [name for name in common if name not in heads]
    where = f"init = {path}"
    _check_names(where, own, weights, skipped, common)
    for name in loaded:
        here, there = own[name], weights[name]
        fits = torch.can_cast(there.dtype, here.dtype)
        if here.shape != there.shape:
            forms = f"{list(there.shape)} there, and {list(here.shape)}"
        elif not fits or (here.is_floating_point() and not there.is_floating_point()):
            forms = f"{there.dtype} there, and {here.dtype}"
        else:
            continue
        fix = (
            f"build the model that was saved, or leave it new: init.skip=[{name.partition('.')[0]}]"
        )
        raise CheckpointError(115, where, f"{name} is {forms} in the model", fix)
    if not loaded:
        fix = "leave init out, or name less in init.skip"
        raise CheckpointError(116, where, "nothing is left to load", fix)
    with torch.no_grad():
        for name in loaded:
            own[name].copy_(weights[name])
    new: list[str] = []
    if heads:
        sizes = f"{own[heads[0]].shape[0]} classes instead of {weights[heads[0]].shape[0]}"
        new.append(f"{listed(heads, FEW)} ({sizes})")
    if left := [name for name in own if name in skipped]:
        new.append(f"{listed(left, FEW)} (init.skip)")
    unused = [name for name in weights if name in skipped - own.keys()]
    return _note(f"init: loaded {len(loaded)} of {len(own)} tensors from {path}", new, unused)


def folder_note(model: nn.Module, info: Mapping[str, Any], config: Config) -> str:
    """Return a note on what transformers loaded from a folder.

    ``info`` is what ``from_pretrained`` says with ``output_loading_info``. CheckpointError K114 if
    the folder is another model's, K115 for a shape that differs by more than the number of classes.
    """
    own = model.state_dict()
    missing = sorted(info["missing_keys"])
    others = {name: tuple(there) for name, there, _ in info["mismatched_keys"]}
    block = config["model"]
    where = f"model = {block.get(FOLDER, block['_target_'])}"
    fix = "name the class of the model that is in the folder"
    if len(missing) > len(own) / 2:
        what = f"lacks {len(missing)} of {len(own)} tensors: {listed(missing, FEW)}"
        raise CheckpointError(114, where, what, fix)
    new = [listed(missing, FEW)] if missing else []
    for name, there in others.items():
        here = own[name].shape
        if there[1:] != tuple(here[1:]):
            what = f"{name} is {list(there)} there, and {list(here)} in the model"
            raise CheckpointError(115, where, what, fix)
        new.append(f"{name} ({here[0]} classes instead of {there[0]})")
    note = f"model: loaded {len(own) - len(missing) - len(others)} of {len(own)} tensors"
    return _note(note, new, sorted(info["unexpected_keys"]))


def _note(note: str, new: Sequence[str], unused: Sequence[str]) -> str:
    if new:
        note += f"; new: {', '.join(new)}"
    if unused:
        note += f"; left out: {listed(unused, FEW)}"
    return note


def _check_names(
    where: str, own: Weights, weights: Weights, skipped: Collection[str], common: Sequence[str]
) -> None:
    # of tied weights, safetensors keeps one
    there = {own[name].data_ptr() for name in common if own[name].numel()}
    missing = [
        name
        for name, tensor in own.items()
        if name not in {*common, *skipped} and tensor.data_ptr() not in there
        if not name.endswith("num_batches_tracked")  # torch before 0.4.1 had none
    ]
    unexpected = [name for name in weights if name not in own and name not in skipped]
    if not missing and not unexpected:
        return
    parts: list[str] = []
    if missing:
        parts.append(f"lacks {len(missing)} of {len(own)} tensors: {listed(missing, FEW)}")
    if unexpected:
        parts.append(f"has {len(unexpected)} that the model lacks: {listed(unexpected, FEW)}")
    firsts = dict.fromkeys(name.partition(".")[0] for name in (*missing, *unexpected))
    modules = ",".join(list(firsts)[:FEW])
    effect = "to leave them new" if missing else "to leave them out"
    fix = f"build the model that was saved, or add 'init.skip=[{modules}]' {effect}"
    if missing and unexpected:
        fix = (
            "build the model that was saved, give other names with 'init.rename={old: new}', "
            "or leave parts out with 'init.skip=[name]'"
        )
    raise CheckpointError(114, where, ", and ".join(parts), fix)


def _unknown(where: str, name: str, names: Collection[str]) -> ConfigError:
    hint = did_you_mean(name, sorted({own.partition(".")[0] for own in names}))
    fix = "give names of modules or tensors"
    return ConfigError(300, where, f"no tensor has this name{hint}", fix)


def _renamed(weights: Weights, rename: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the weights with other prefixes of names. An empty new name drops the old one."""
    names = {name: name for name in weights}
    for old, new in rename.items():
        members = [name for name in weights if old == ALL or f"{name}.".startswith(f"{old}.")]
        if not members:
            raise _unknown(f"init.rename = {{{old}: {new}}}", old, weights)
        for name in members:
            rest = name if old == ALL else name.removeprefix(old).removeprefix(".")
            names[name] = ".".join(filter(None, (new, rest)))
    if doubled := [name for name, count in Counter(names.values()).items() if count > 1]:
        what = f"gives two tensors the name {doubled[0]}"
        raise ConfigError(300, f"init.rename = {rename}"[:200], what, "give each its own")
    return {names[name]: value for name, value in weights.items()}


def load_teacher(objective: object, say: Callable[[str], None]) -> None:
    """Load the weights that an objective names for its teacher, if it has one.

    ConfigError C319 if they are those of another model. CheckpointError as ``read_weights``.
    """
    if not isinstance(objective, Distill):
        return
    if objective.weights is None:
        say("note: objective.weights = null: the teacher keeps the weights it was built with")
        return
    saved = read_weights(objective.weights, names=objective.teacher.state_dict())
    try:
        objective.teacher.load_state_dict(saved)
    except RuntimeError as error:
        what = words_of(error).partition(": ")[2]
        fix = "set the keys of objective.teacher to those of the model that was saved"
        raise ConfigError(319, f"objective.weights = {objective.weights}", what, fix) from error
