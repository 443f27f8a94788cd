"""Where first weights come from: files of ours and of other programs, runs, and training records.

Nothing in a file is executed.
"""

import os
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch, taken
from framework.contracts.training import Objective, StartsFromData
from framework.errors import CheckpointError, listed, words_of
from framework.system.extras import needed
from framework.system.run_dir import check_entry, check_weights_path, is_run
from framework.train.checkpoint import (
    FOLDER,
    Damaged,
    has_stamp,
    load_checked,
    newest_path,
    read_state,
)

CHUNK = 64  # records of one pass of ``start_from_data``: few images lie in memory as floats
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
        names: The names in the model, if known. Prefixes of wraps (``module.``, ``_orig_mod.``) are
            dropped from the names in the file, unless these have them.

    CheckpointError K110 if nothing is there, K111 for a file that cannot be read, K112 if it holds
    no weights, K113 for a value that is no plain tensor; ResourceError R112 without safetensors.
    """
    file = weights_path(path, average)
    weights = read_dict(file)
    is_lightning = LIGHTNING in weights
    keys = (*AVERAGES, *PLAIN) if average else (*PLAIN, *AVERAGES)
    for _ in range(MOST_WRAPPED):  # what is innermost holds the weights
        inside = [weights[key] for key in keys if isinstance(weights.get(key), Mapping)]
        inner = next(filter(None, inside), None)
        if inner is None:
            break
        weights = dict(inner)
    if not any(isinstance(value, Tensor) for value in weights.values()):
        keys = listed([str(key)[:50] for key in weights]) or "nothing"
        what = f"holds no weights where Paceline looks for them; it has {keys}"
        fix = "save the model's state_dict alone, or under the key state_dict"
        raise CheckpointError(112, str(file), what, fix)
    for name, value in weights.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            what = f"is a {type(value).__name__[:50]}, no plain tensor with a name"
            fix = "save a state_dict of plain tensors"
            raise CheckpointError(113, f"{file}: {name}"[:300], what, fix)
    if is_lightning and not any(name.startswith("model.") for name in names):
        weights = {name.removeprefix("model."): value for name, value in weights.items()}
    # what torch.compile, DataParallel and DDP add to the names
    if not any("_orig_mod." in name for name in names):
        weights = {name.replace("_orig_mod.", ""): value for name, value in weights.items()}
    others = [name for name in weights if not name.startswith("module.")]
    if others in ([], [COUNT]) and not any(name.startswith("module.") for name in names):
        weights.pop(COUNT, None)
        weights = {name.removeprefix("module."): value for name, value in weights.items()}
    return weights


def weights_path(path: str | os.PathLike[str], average: bool = True) -> Path:
    """Return the file to read for ``path``, which may be a folder. CheckpointError K110, K126."""
    given = Path(path)
    if not given.is_dir():
        check_weights_path(given)
        return given
    if is_run(given):
        check_entry(given)
    files = [place / name for name in NAMES for place in (given / FOLDER, given)]
    newest = newest_path(given)
    if newest is not None:
        files.insert(len(files) if average else 0, newest)
    for file in files:
        if file.is_file():
            return file
    fix = "give the directory of a run that has saved a state, or the file itself"
    raise CheckpointError(110, str(given), f"no {listed(NAMES)} in this folder", fix)


def read_dict(path: Path) -> dict[str, Any]:
    """Return the dict in a file, on the CPU. CheckpointError K111, K112; ResourceError R112."""
    fix = "save it anew, or give another file"
    try:
        with open(path, "rb") as file:
            head = file.read(9)
            if has_stamp(file):
                value = read_state(path)
            elif head[8:] == b"{":
                value = _safetensors(path)
            else:
                value = load_checked(file)
    except Damaged as error:
        raise CheckpointError(111, str(path), f"cannot be read: {error}", fix) from error
    except OSError as error:
        what = f"cannot be read: {error.strerror or words_of(error)}"
        raise CheckpointError(111, str(path), what, fix) from error
    if not isinstance(value, Mapping):
        what = f"holds a {type(value).__name__[:50]}, and no weights by name"
        raise CheckpointError(112, str(path), what, "save a model's state_dict")
    return {key: item for key, item in value.items() if isinstance(key, str)}


def _safetensors(path: Path) -> dict[str, Tensor]:
    needed("safetensors", "safetensors")
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415

    try:
        return load_file(path)
    except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise Damaged(f"not whole, or not of safetensors ({words_of(error)})") from error


class _Reached(Exception):
    """A pass has reached the module, with the inputs in ``args``. The rest may take long."""


def start_from_data(
    model: nn.Module,
    objective: Objective,
    sample: Callable[[int], Batch],
    finish: Callable[[Batch], Batch],
) -> None:
    """Start every module that can from training records, in the order of ``modules()``.

    A module gets what reaches it in evaluation, through the modules before it. ``sample`` returns
    at most so many records, and ``finish`` augments and moves them as in evaluation.
    """

    def stop(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        raise _Reached(inputs[0])

    def inputs_of(module: nn.Module, records: Batch) -> Iterator[Tensor]:
        training = model.training
        for numbers in torch.arange(len(records["index"])).split(CHUNK):
            batch = finish(taken(records, numbers))
            hook = module.register_forward_pre_hook(stop)
            model.eval()
            try:
                with torch.no_grad():
                    objective(model, batch)
            except _Reached as reached:
                yield reached.args[0]
            finally:
                model.train(training)
                hook.remove()

    for module in model.modules():
        if isinstance(module, StartsFromData):
            module.start_from(inputs_of(module, sample(module.num_start_records)))
