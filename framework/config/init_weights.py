"""Start a model from somebody's weights: the block ``init``.

The names in the file must be those of the model. Only a head for another number of classes, and
what ``init.skip`` names, stay as the model was built.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import file_digest
from itertools import islice, product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from framework.config.foreign_models import FOLDER
from framework.config.targets import Config
from framework.errors import CheckpointError, ConfigError, did_you_mean
from framework.objective.distill import Distill
from framework.train.weight_files import read_weights, weights_path

FEW = 4  # names in a message
MOST_COMPARED = 200  # names of each side, when a rename is looked for
DIGEST = "digest"  # of the file, in the block ``init``
ALL = "*"  # stands for every name in ``init.rename``, to which it gives a prefix
QUOTES = "''"  # an empty name
CLASSES = ("num_classes", "num_labels", "out_features")  # arguments that size a head


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
    """Copy the weights in a file into the model, before it is wrapped.

    Args:
        model: Where it was built. Nothing is copied if something does not fit.
        path: The file of weights.
        config: Plain values. ``init`` says how to read the file, ``model`` how large a head is.
        num_classes: What the data has; 0 if it names none.

    Returns:
        A note on what was loaded, and what is new.

    Raises:
        CheckpointError: K110 to K113 as ``read_weights``, K114 for names that are missing or
            unexpected, K115 for a shape or a type that does not fit, K116 if nothing is left.
        ConfigError: C300 for a name in ``init.skip`` or ``init.rename`` that nothing has.
    """
    choice = config["init"]
    rename = choice["rename"] or {}
    own: dict[str, Tensor] = model.state_dict()
    old = [f"{prefix}." for prefix in rename]  # what the names in the file may begin with
    weights = read_weights(path, choice["average"], [*own, *old])
    weights = _renamed(weights, rename)
    _check_skipped(choice["skip"], {*own, *weights})
    typed = (config["model"].get(key) for key in CLASSES)
    sized = next((size for size in typed if type(size) is int), num_classes)
    skipped = {name for name in {*own, *weights} if _is_named(name, choice["skip"])}
    common = [name for name in own if name in weights and name not in skipped]
    last_module = next(reversed(list(own)), "").rpartition(".")[0]
    heads: list[str] = []  # of which only the number of classes differs, the first size
    for name in common:
        here, there = own[name].shape, weights[name].shape
        differs = here != there and here and len(here) == len(there) and here[1:] == there[1:]
        is_last = name.rpartition(".")[0] == last_module
        if differs and (here[0] == sized if sized else is_last):
            heads.append(name)
    loaded = [name for name in common if name not in heads]
    _check_names(f"init = {path}", own, weights, skipped, common)
    for name in loaded:
        here, there = own[name], weights[name]
        fix = f"build the model that was saved, or leave it new: init.skip=[{_module(name)}]"
        what = f"{name} is {list(there.shape)} there, and {list(here.shape)} in the model"
        kinds = [(value.is_floating_point(), value.is_complex()) for value in (here, there)]
        if here.shape == there.shape and kinds[0] != kinds[1]:
            what = f"{name} is {there.dtype} there, and {here.dtype} in the model"
        elif here.shape == there.shape:
            continue
        raise CheckpointError(115, f"init = {path}", what, fix)
    if not loaded:
        what = "nothing is left to load"
        fix = "leave init out, or name less in init.skip"
        raise CheckpointError(116, f"init = {path}", what, fix)
    with torch.no_grad():
        for name in loaded:
            own[name].copy_(weights[name])
    new: list[str] = []
    if heads:
        sizes = own[heads[0]].shape[0], weights[heads[0]].shape[0]
        new.append(f"{_few(heads)} ({sizes[0]} classes instead of {sizes[1]})")
    if left := [name for name in own if name in skipped]:
        new.append(f"{_few(left)} (init.skip)")
    unused = [name for name in weights if name in skipped - own.keys()]
    return _note(f"init: loaded {len(loaded)} of {len(own)} tensors from {path}", new, unused)


def folder_note(model: nn.Module, info: Mapping[str, Any], config: Config) -> str:
    """Return a note on what transformers loaded from a folder.

    Args:
        model: The model.
        info: What ``from_pretrained`` says with ``output_loading_info``.
        config: Plain values.

    Raises:
        CheckpointError: K114 if the folder is another model's, K115 for a shape that differs by
            more than the number of classes.
    """
    own = model.state_dict()
    missing = sorted(info["missing_keys"])
    others = {name: tuple(there) for name, there, _ in info["mismatched_keys"]}
    block = config["model"]
    where = f"model = {block.get(FOLDER, block['_target_'])}"
    fix = "name the class of the model that is in the folder"
    if len(missing) > len(own) / 2:
        what = f"lacks {len(missing)} of {len(own)} tensors: {_few(missing)}"
        raise CheckpointError(114, where, what, fix)
    for name, there in others.items():
        if there[1:] != tuple(own[name].shape[1:]):
            what = f"{name} is {list(there)} there, and {list(own[name].shape)} in the model"
            raise CheckpointError(115, where, what, fix)
    note = f"model: loaded {len(own) - len(missing) - len(others)} of {len(own)} tensors"
    new = [_few(missing)] if missing else []
    if others:
        name = next(iter(others))
        sizes = f"{own[name].shape[0]} classes instead of {others[name][0]}"
        new.append(f"{_few(list(others))} ({sizes})")
    return _note(note, new, sorted(info["unexpected_keys"]))


def _note(note: str, new: Sequence[str], unused: Sequence[str]) -> str:
    if new:
        note += f"; new: {', '.join(new)}"
    if unused:
        note += f"; left out: {_few(unused)}"
    return note


def _check_names(
    where: str,
    own: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    skipped: Collection[str],
    common: Sequence[str],
) -> None:
    """Check that the names in a file are those of the model. CheckpointError K114."""
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
        parts.append(f"lacks {len(missing)} of {len(own)} tensors: {_few(missing)}")
    if unexpected:
        parts.append(f"has {len(unexpected)} that the model lacks: {_few(unexpected)}")
    modules = list(dict.fromkeys(_module(name) for name in (*missing, *unexpected)))
    effect = "to leave them new" if missing else "to leave them out"
    fix = f"build the model that was saved, or add 'init.skip=[{','.join(modules[:FEW])}]' {effect}"
    if missing and unexpected:
        fix = (
            "build the model that was saved, give other names with 'init.rename={old: new}', "
            "or leave parts out with 'init.skip=[name]'"
        )
        # the change of a prefix that most tensors with fitting shapes agree on
        votes: Counter[tuple[str, str]] = Counter()
        pairs = product(islice(unexpected, MOST_COMPARED), islice(missing, MOST_COMPARED))
        for old_name, new_name in pairs:
            if weights[old_name].shape[1:] == own[new_name].shape[1:]:
                rename = _change(old_name, new_name)
                # a prefix for all names would change those that fit
                if rename[0] or (rename[1] and not common):
                    votes[rename] += 1
        for (old, new), count in votes.most_common(1):
            if 2 * count >= min(MOST_COMPARED, max(len(missing), len(unexpected))):
                change = f"{{{old or ALL}: {new or QUOTES}}}"
                fix = f'add "init.rename={change}"'
    raise CheckpointError(114, where, ", and ".join(parts), fix)


def _few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    some = ", ".join(name[:100] for name in names[:FEW])
    if len(names) > FEW:
        some += f", ... ({len(names)} in all)"
    return some


def _module(name: str) -> str:
    """Return the outermost module of a tensor."""
    return name.partition(".")[0]


def _change(old: str, new: str) -> tuple[str, str]:
    """Return two names without the last parts that they share."""
    before = old.split(".")
    after = new.split(".")
    while before and after and before[-1] == after[-1]:
        before.pop()
        after.pop()
    return ".".join(before), ".".join(after)


def _is_named(name: str, names: Sequence[str]) -> bool:
    """Return whether a tensor, or a module around it, has one of these names or patterns."""
    return any(name.startswith(f"{own}.") or fnmatchcase(name, own) for own in names)


def _check_skipped(skip: Sequence[str], names: Collection[str]) -> None:
    """Check that every name in ``init.skip`` is one of a tensor or a module. ConfigError C300."""
    for own in skip:
        if not any(_is_named(name, [own]) for name in names):
            modules = sorted({_module(name) for name in names})
            what = f"no tensor has this name{did_you_mean(own, modules)}"
            fix = "give names of modules or tensors, with * for any part of them"
            raise ConfigError(300, f"init.skip = [{own}]", what, fix)


def _renamed(weights: Mapping[str, Tensor], rename: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the weights with other prefixes of their names. ConfigError C300.

    Args:
        weights: The weights by name.
        rename: Old to new names of modules or tensors. ``*`` is every name, to which the new one is
            added in front. An empty new name drops the old one.
    """
    names = {name: name for name in weights}
    for old, new in rename.items():
        members = [name for name in weights if old == ALL or f"{name}.".startswith(f"{old}.")]
        where = f"init.rename = {{{old}: {new}}}"
        if not members:
            modules = sorted({_module(name) for name in weights})
            what = f"no tensor of the file has this name{did_you_mean(old, modules)}"
            raise ConfigError(300, where, what, "give names of modules or tensors of the file")
        for name in members:
            rest = name
            if old != ALL:
                rest = name.removeprefix(old).removeprefix(".")
            names[name] = ".".join(part for part in (new, rest) if part)
    result = {names[name]: value for name, value in weights.items()}
    if len(result) < len(weights):
        twice = next(name for name, count in Counter(names.values()).items() if count > 1)
        where = f"init.rename = {rename}"[:200]
        what = f"gives two tensors the name {twice}"
        raise ConfigError(300, where, what, "give each its own")
    return result


def load_teacher(objective: object) -> None:
    """Load the weights that an objective names for its teacher, if it has one.

    Raises:
        ConfigError: C319 if they are those of another model.
        CheckpointError: As ``read_weights``, if the file cannot be read.
    """
    if not isinstance(objective, Distill) or objective.weights is None:
        return
    own: dict[str, Any] = objective.teacher.state_dict()
    saved = read_weights(objective.weights, names=own)
    where = f"objective.weights = {objective.weights}"
    faults = [f"lacks {name}" for name in own if name not in saved]
    faults += [f"has {name}, which the teacher has not" for name in saved if name not in own]
    faults += [
        f"has {name} of the shape {list(value.shape)}, not {list(own[name].shape)}"
        for name, value in saved.items()
        if isinstance(own.get(name), Tensor) and own[name].shape != value.shape
    ]
    if faults:
        more = f", and {len(faults) - 1} more" if len(faults) > 1 else ""
        fix = "set the keys of objective.teacher to those of the model that was saved"
        raise ConfigError(319, where, f"{faults[0]}{more}", fix)
    objective.teacher.load_state_dict(saved)
