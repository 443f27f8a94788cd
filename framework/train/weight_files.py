"""Read files of weights: ours, those of other programs, and those in a run's directory.

Nothing in a file is executed, and no more memory is taken than the file is long.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from framework.errors import CheckpointError, listed, words_of
from framework.system.extras import needed
from framework.system.run_dir import check_entry, is_run
from framework.train.checked_load import Damaged, load_checked
from framework.train.checkpoint import FOLDER, has_stamp, newest_path, read_state
from framework.train.weight_place import check_place

# The keys under which programs save averaged weights and plain ones: Paceline, timm, torchvision,
# Lightning, DeepSpeed and many training scripts.
AVERAGES = ("average", "state_dict_ema", "model_ema", "ema_state_dict", "ema")
PLAIN = ("state_dict", "model_state_dict", "model", "module", "net", "weights")
MOST_WRAPPED = 4  # dicts around the weights, as in {"ema": {"module": ...}}
LIGHTNING = "pytorch-lightning_version"  # a key of each of its checkpoints
COUNT = "n_averaged"  # a tensor of torch's AveragedModel, which is no weight
# What a folder may hold, the best first: a run's, a folder of checkpoints, Hugging Face's.
NAMES = ("best.pt", "last.pt", "model.safetensors", "pytorch_model.bin")


def read_weights(
    path: str | os.PathLike[str], average: bool = True, names: Collection[str] = ()
) -> dict[str, Tensor]:
    """Return the weights in a file, on the CPU, by their names in the model.

    Args:
        path: A ``state_dict`` of torch, bare or in a checkpoint of any training program, a file of
            safetensors, the directory of a run, or a folder of Hugging Face.
        average: Whether to take the averaged weights (EMA) if there are plain ones, too. Of a run's
            directory, ``best.pt`` is taken; without ``average`` the weights of its newest state.
        names: The names in the model, if known. What wrapped the model when it was saved is
            dropped from the names in the file (``module.``, ``_orig_mod.``), unless these have it.

    Raises:
        CheckpointError: K110 if nothing is there, K111 for a file that is damaged, hostile or of
            another format, K112 if it holds no weights, K113 for a value that is no plain tensor.
        ResourceError: R112 without the package safetensors.
    """
    file = weights_path(path, average)
    value = read_dict(file)
    is_lightning = LIGHTNING in value
    weights = _unwrapped(value, average)
    _check(weights, file)
    if is_lightning:
        weights = _without("model.", weights, names, everywhere=False)
    return _unprefixed(weights, names)


def weights_path(path: str | os.PathLike[str], average: bool = True) -> Path:
    """Return the file to read for ``path``, which may be a folder. CheckpointError K110, K126."""
    given = Path(path)
    if given.is_dir():
        if is_run(given):
            check_entry(given)
        return _file_in(given, average)
    check_place(given)
    return given


def _file_in(folder: Path, average: bool) -> Path:
    """Return the file of weights in a folder. CheckpointError K110 if there is none."""
    files = [place / name for name in NAMES for place in (folder / FOLDER, folder)]
    newest = newest_path(folder)
    if newest is not None:
        files.insert(len(files) if average else 0, newest)
    for file in files:
        if file.is_file():
            return file
    fix = "give the directory of a run that has saved a state, or the file itself"
    raise CheckpointError(110, str(folder), f"no {listed(NAMES)} in this folder", fix)


def read_dict(path: Path) -> dict[str, Any]:
    """Return the dict in a file, on the CPU. CheckpointError K111, K112; ResourceError R112."""
    fix = "save it anew, or give another file"
    try:
        value = _loaded(path)
    except Damaged as error:
        raise CheckpointError(111, str(path), f"cannot be read: {error}", fix) from error
    except OSError as error:
        what = f"cannot be read: {error.strerror or words_of(error)}"
        raise CheckpointError(111, str(path), what, fix) from error
    if not isinstance(value, Mapping):
        what = f"holds a {type(value).__name__[:50]}, and no weights by name"
        raise CheckpointError(112, str(path), what, "save a model's state_dict")
    return {key: item for key, item in value.items() if isinstance(key, str)}


def _loaded(path: Path) -> Any:
    """Return what a file holds. Damaged, OSError or ResourceError R112 if it cannot be read."""
    with open(path, "rb") as file:
        if has_stamp(file):
            return read_state(path)
        file.seek(0)
        if file.read(9)[8:] != b"{":
            return load_checked(file)
    return _safetensors(path)


def _safetensors(path: Path) -> dict[str, Tensor]:
    needed("safetensors", "safetensors")
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise Damaged(f"not whole, or not of safetensors ({words_of(error)})") from error


def _unwrapped(value: Mapping[str, Any], average: bool) -> dict[str, Any]:
    """Return the innermost dict that holds the weights."""
    keys = (*AVERAGES, *PLAIN) if average else (*PLAIN, *AVERAGES)
    for _ in range(MOST_WRAPPED):
        inside = [value[key] for key in keys if isinstance(value.get(key), Mapping)]
        inner = next(filter(None, inside), None)
        if inner is None:
            break
        value = inner
    return dict(value)


def _check(weights: Mapping[Any, Any], path: Path) -> None:
    """Raise CheckpointError K112 or K113 unless all values are plain tensors by name."""
    if not any(isinstance(value, Tensor) for value in weights.values()):
        keys = listed([str(key)[:50] for key in weights]) or "nothing"
        what = f"holds no weights where Paceline looks for them; it has {keys}"
        fix = "save the model's state_dict alone, or under the key state_dict"
        raise CheckpointError(112, str(path), what, fix)
    for name, value in weights.items():
        what = ""
        if not isinstance(name, str):
            what = "is named by no text"
        elif not isinstance(value, Tensor):
            what = f"is a {type(value).__name__[:50]}, no plain tensor"
        if what:
            fix = "save a state_dict of plain tensors"
            raise CheckpointError(113, f"{path}: {name}"[:300], what, fix)


def _unprefixed(weights: dict[str, Any], names: Collection[str]) -> dict[str, Tensor]:
    """Return the weights without what DataParallel, DDP and torch.compile add to their names."""
    if not any("_orig_mod." in name for name in names):
        weights = {name.replace("_orig_mod.", ""): value for name, value in weights.items()}
    if all(name.startswith("module.") or name == COUNT for name in weights):
        weights = {name: value for name, value in weights.items() if name != COUNT}
    return _without("module.", weights, names)


def _without(
    prefix: str, weights: dict[str, Any], names: Collection[str], everywhere: bool = True
) -> dict[str, Any]:
    """Return the weights without a prefix of their names, unless the model's names have it.

    ``everywhere``: only if all names in the file have it.
    """
    if any(name.startswith(prefix) for name in names):
        return weights
    if everywhere and not all(name.startswith(prefix) for name in weights):
        return weights
    return {name.removeprefix(prefix): value for name, value in weights.items()}
