"""Start a model from somebody's weights: the block ``init``.

The names in the file must be those of the model. Only a head for another number of classes, and
what ``init.skip`` names, stay as the model was built.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from hashlib import file_digest
from itertools import islice, product
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

from framework.config.foreign_models import FOLDER
from framework.config.targets import Config
from framework.errors import CheckpointError, ConfigError, did_you_mean
from framework.train.weight_files import read_weights, weights_path

FEW = 4  # names in a message
MOST_COMPARED = 200  # names of each side, when a rename is looked for
DIGEST = "digest"  # of the file, in the block ``init``
ALL = "*"  # stands for every name in ``init.rename``, to which it gives a prefix
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
    fit = _Fit(str(path), own, weights, choice["skip"], sized)
    fit.check()
    return fit.load()


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
    if new:
        note += f"; new: {', '.join(new)}"
    if unused := sorted(info["unexpected_keys"]):
        note += f"; left out: {_few(unused)}"
    return note


@final
class _Fit:
    """Compares the tensors of a model with those of a file.

    Attributes:
        path: The file, for messages.
        own: The tensors of the model, by name.
        weights: The tensors of the file under the names of the model.
        skip: The names and patterns that ``init.skip`` leaves new.
        num_classes: The number of classes of the new head; 0 if it is not known.
    """

    def __init__(
        self,
        path: str,
        own: Mapping[str, Tensor],
        weights: Mapping[str, Tensor],
        skip: Sequence[str],
        num_classes: int,
    ) -> None:
        self.path = path
        self.own = own
        self.weights = weights
        self.num_classes = num_classes
        self.skipped = {name for name in {*own, *weights} if _is_named(name, skip)}
        self.common = [name for name in own if name in weights and name not in self.skipped]
        self.heads = [name for name in self.common if self._is_head(name)]
        self.loaded = [name for name in self.common if name not in self.heads]

    def _is_head(self, name: str) -> bool:
        """Return whether only the number of classes differs, which is the first size."""
        here = self.own[name].shape
        there = self.weights[name].shape
        if here == there or not here or len(here) != len(there) or here[1:] != there[1:]:
            return False
        if self.num_classes:
            return here[0] == self.num_classes
        last = next(reversed(list(self.own)))
        return name.rpartition(".")[0] == last.rpartition(".")[0]

    def check(self) -> None:
        """Raise CheckpointError K114, K115 or K116 unless the file fits the model."""
        where = f"init = {self.path}"
        missing = list(self._missing())
        rest = self.weights.keys() - self.own.keys() - self.skipped
        unexpected = [name for name in self.weights if name in rest]
        if missing or unexpected:
            parts: list[str] = []
            if missing:
                parts.append(f"lacks {len(missing)} of {len(self.own)} tensors: {_few(missing)}")
            if unexpected:
                count = len(unexpected)
                parts.append(f"has {count} that the model lacks: {_few(unexpected)}")
            fix = self._advice(missing, unexpected)
            raise CheckpointError(114, where, ", and ".join(parts), fix)
        for name in self.loaded:
            here = self.own[name]
            there = self.weights[name]
            fix = f"build the model that was saved, or leave it new: init.skip=[{_module(name)}]"
            if here.shape != there.shape:
                what = f"{name} is {list(there.shape)} there, and {list(here.shape)} in the model"
                raise CheckpointError(115, where, what, fix)
            if _kind(here) != _kind(there):
                what = f"{name} is {there.dtype} there, and {here.dtype} in the model"
                raise CheckpointError(115, where, what, fix)
        if not self.loaded:
            what = "nothing is left to load"
            raise CheckpointError(116, where, what, "leave init out, or name less in init.skip")

    def _missing(self) -> Iterator[str]:
        """Yield the names that the file should have, but does not."""
        # of tied weights, safetensors keeps one
        there = {self.own[name].data_ptr() for name in self.common if self.own[name].numel()}
        for name, tensor in self.own.items():
            is_tied = tensor.data_ptr() in there
            is_count = name.endswith("num_batches_tracked")  # torch before 0.4.1 had none
            if name not in {*self.common, *self.skipped} and not is_tied and not is_count:
                yield name

    def _advice(self, missing: Sequence[str], unexpected: Sequence[str]) -> str:
        if missing and unexpected:
            if rename := self._likely_rename(missing, unexpected):
                return f'add "init.rename={{{rename[0]}: {rename[1]}}}"'
            return (
                "build the model that was saved, give other names with 'init.rename={old: new}', "
                "or leave parts out with 'init.skip=[name]'"
            )
        modules = list(dict.fromkeys(_module(name) for name in (*missing, *unexpected)))
        effect = "to leave them new" if missing else "to leave them out"
        names = ",".join(modules[:FEW])
        return f"build the model that was saved, or add 'init.skip=[{names}]' {effect}"

    def _likely_rename(
        self, missing: Sequence[str], unexpected: Sequence[str]
    ) -> tuple[str, str] | None:
        """Return the change of a prefix that most tensors with fitting shapes agree on."""
        votes: Counter[tuple[str, str]] = Counter()
        pairs = product(islice(unexpected, MOST_COMPARED), islice(missing, MOST_COMPARED))
        for there, here in pairs:
            if self.weights[there].shape[1:] == self.own[here].shape[1:]:
                rename = _change(there, here)
                # a prefix for all names would change those that fit
                if rename[0] or (rename[1] and not self.common):
                    votes[rename] += 1
        if not votes:
            return None
        (old, new), count = votes.most_common(1)[0]
        if 2 * count < min(MOST_COMPARED, max(len(missing), len(unexpected))):
            return None  # most names would still differ
        return old or ALL, new or "''"

    @torch.no_grad()
    def load(self) -> str:
        """Copy the tensors, and return the note."""
        for name in self.loaded:
            self.own[name].copy_(self.weights[name])
        new = [f"{_few(self.heads)} ({self._classes()})"] if self.heads else []
        if skipped := [name for name in self.own if name in self.skipped]:
            new.append(f"{_few(skipped)} (init.skip)")
        note = f"init: loaded {len(self.loaded)} of {len(self.own)} tensors from {self.path}"
        if new:
            note += f"; new: {', '.join(new)}"
        if unused := [name for name in self.weights if name in self.skipped - self.own.keys()]:
            note += f"; left out: {_few(unused)}"
        return note

    def _classes(self) -> str:
        name = self.heads[0]
        return f"{self.own[name].shape[0]} classes instead of {self.weights[name].shape[0]}"


def _few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    some = ", ".join(name[:100] for name in names[:FEW])
    if len(names) > FEW:
        some += f", ... ({len(names)} in all)"
    return some


def _module(name: str) -> str:
    """Return the outermost module of a tensor."""
    return name.partition(".")[0]


def _kind(tensor: Tensor) -> tuple[bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex()


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
