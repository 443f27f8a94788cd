"""The weights of a model: the first ones, those that are not trained, and their moving average.

Source of lookahead: Zhang et al., "Lookahead optimizer", 2019; as an average whose decay rises over
the run: hlb-CIFAR10 and Jordan, "94% on CIFAR-10 in 3.29 seconds on a single GPU", 2024.
"""

import math
import os
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, final

import torch
from torch import Tensor, nn

from framework.contracts.batch import Batch, taken
from framework.contracts.training import Objective, StartsFromData
from framework.errors import CheckpointError, ConfigError, listed, words_of
from framework.system.run_dir import check_entry, check_weights_path, is_run
from framework.system.user_code import needed
from framework.train import checkpoint
from framework.train.parameter_groups import Thaws, matching, thaws_of, what_model_has

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
    """Return the weights in a file, on the CPU, by their names in the model. Nothing is executed.

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
    files = [place / name for name in NAMES for place in (given / checkpoint.FOLDER, given)]
    newest = checkpoint.newest_path(given)
    if newest is not None:
        files.insert(len(files) if average else 0, newest)
    for file in files:
        if file.is_file():
            return file
    fix = "give the directory of a run that has saved a state, or the file itself"
    raise CheckpointError(110, str(given), f"no {listed(NAMES)} in this folder", fix)


def read_dict(path: Path) -> dict[str, Any]:
    """Return the dict in a file, on the CPU. CheckpointError K111, K112; ResourceError R112."""
    try:
        with open(path, "rb") as file:
            head = file.read(9)
            if checkpoint.has_stamp(file):
                value = checkpoint.read_state(path)
            elif head[8:] != b"{":
                value = checkpoint.load_checked(file)
            else:
                needed("safetensors", "safetensors")
                from safetensors import SafetensorError  # noqa: PLC0415
                from safetensors.torch import load_file  # noqa: PLC0415

                try:
                    value = load_file(path)
                except (SafetensorError, ValueError, KeyError, RuntimeError) as error:
                    what = f"not whole, or not of safetensors ({words_of(error)})"
                    raise checkpoint.Damaged(what) from error
    except (checkpoint.Damaged, OSError) as error:
        reason = isinstance(error, OSError) and error.strerror
        what = f"cannot be read: {reason or words_of(error)}"
        fix = "save its state_dict anew, or give another file"
        raise CheckpointError(111, str(path), what, fix) from error
    if not isinstance(value, Mapping):
        what = f"holds a {type(value).__name__[:50]}, and no weights by name"
        raise CheckpointError(112, str(path), what, "save a model's state_dict")
    return {key: item for key, item in value.items() if isinstance(key, str)}


def read_best(folder: Path) -> dict[str, Any]:
    """Return the best weights of a run, and what the objective then owned. K111, K112."""
    owned = folder / f"best{checkpoint.OF_OBJECTIVE}"
    return {
        "model": read_dict(folder / "best.pt"),
        "objective": read_dict(owned) if owned.exists() else {},
    }


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


def freeze_layers(model: nn.Module, freeze: Any) -> Thaws:
    """Freeze the parameters that ``freeze`` names, and return when each thaws, by its name.

    Parameters that the model itself has frozen stay so. ConfigError C312 for a pattern without
    parameters or with those of another, or if nothing is left to train.
    """
    parameters = dict(model.named_parameters())
    thaws: Thaws = {}
    for pattern, step in thaws_of(freeze).items():
        members = matching(pattern, parameters)
        where = f"freeze = {pattern}"
        if not members:
            what = f"matches no parameter of the model; {what_model_has(pattern, parameters)}"
            raise ConfigError(312, where, what, "give names of modules or parameters")
        if taken := [name for name in members if name in thaws]:
            what = f"matches {taken[0]}, which another entry has"
            raise ConfigError(312, where, what, "name each layer once")
        thaws |= dict.fromkeys(members, step)
    thaws = {name: step for name, step in thaws.items() if parameters[name].requires_grad}
    for name in thaws:
        parameters[name].requires_grad_(False)
    if thaws and not any(parameter.requires_grad for parameter in parameters.values()):
        where = f"freeze = {', '.join(thaws_of(freeze))}"
        fix = "leave out the layers that shall learn"
        raise ConfigError(312, where, "leaves nothing to train", fix)
    return thaws


@final
@dataclass
class Freeze:
    """The frozen layers of a model, which thaw step by step. No optimizer moves or decays them.

    Batch norm whose own parameters are all frozen, or whose statistics belong to a frozen module,
    does not update its statistics.
    """

    model: nn.Module  # the user's own, not what wraps it
    thaws: Thaws  # the step from which on each frozen parameter is trained, by its name
    patterns: Thaws  # the names in the block ``freeze`` and their steps
    rewrap: Callable[[nn.Module], nn.Module]  # wraps it again after others need gradients

    def __post_init__(self) -> None:
        self._step = 0
        # after how many optimizer steps something thaws
        self.steps = {step for step in self.thaws.values() if step is not None}
        # Modules with running statistics that freeze, and when each thaws: with the first of its
        # own parameters. Without parameters, its name decides.
        self._norms: list[tuple[nn.Module, float]] = []
        for place, module in self.model.named_modules():
            if "running_mean" not in dict(module.named_buffers(recurse=False)):
                continue
            steps: list[float] = []
            for name in [own for own, _ in module.named_parameters(place)] or [place]:
                matches = [step for key, step in self.patterns.items() if matching(key, [name])]
                steps += [math.inf if step is None else step for step in (matches or [0])[:1]]
            self._norms.append((module, min(steps)))

    def is_frozen(self, name: str) -> bool:
        thaw = self.thaws.get(name, 0)
        return thaw is None or self._step < thaw

    def move_to(self, step: int, wrapped: nn.Module) -> nn.Module:
        """Freeze and thaw what is due after ``step`` steps, and return the model, maybe rewrapped.

        All ranks call this together.
        """
        before = list(map(self.is_frozen, self.thaws))
        self._step = step
        if list(map(self.is_frozen, self.thaws)) == before:
            return wrapped
        for name, parameter in self.model.named_parameters():
            if name in self.thaws:
                parameter.requires_grad_(not self.is_frozen(name))
        return self.rewrap(wrapped)

    def hold(self) -> None:
        """Switch frozen batch norms to evaluation, after the model was switched to training."""
        for module, thaw in self._norms:
            if self._step < thaw:
                module.eval()


def is_sharded(tensor: Tensor) -> TypeGuard[Any]:
    """Return whether a tensor is a DTensor, known by its method: importing it takes a second."""
    return hasattr(tensor, "full_tensor")


def local(tensor: Tensor) -> Tensor:
    """Return the part of a sharded tensor that this process holds, or a plain tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor


@final
@dataclass
class Average:
    """The moving average of a model's weights. Buffers, such as batch norm's, are copied."""

    model: nn.Module
    # The share of the old average that a step keeps, 0 to 1; an update keeps ``decay ** every``.
    decay: float
    every: int = 1  # optimizer steps between updates
    # The power of the share of all steps done that multiplies what an update keeps. Above 0, the
    # average follows the weights at first.
    ramp: float = 0.0
    # Whether each update copies the average back into the model. Buffers of floats are then
    # averaged, too.
    lookahead: bool = False

    def __post_init__(self) -> None:
        # whether every step updates the average in the same way, so that a graph can repeat it
        self.is_constant = self.every == 1 and self.ramp == 0
        self._weights = [weight.detach().clone() for weight in self.model.parameters()]
        self._buffers = [buffer.detach().clone() for buffer in self.model.buffers()]

    def update_after(self, step: int, total_steps: int) -> None:
        """Update the average if optimizer step ``step``, counted from 1, is due for it."""
        if step % self.every == 0:
            self.update(self.decay**self.every * (step / total_steps) ** self.ramp)

    @torch.no_grad()
    def update(self, kept: float) -> None:
        """Keep the share ``kept`` of the average, and add the weights. Never synchronizes."""
        averages = [local(average) for average in self._weights]
        own = [local(weight.detach()) for weight in self.model.parameters()]
        copies: list[Tensor] = []
        copied: list[Tensor] = []
        for average, buffer in zip(self._buffers, self.model.buffers(), strict=True):
            if self.lookahead and average.is_floating_point():
                averages.append(average)
                own.append(buffer)
            else:
                copies.append(average)
                copied.append(buffer)
        torch._foreach_lerp_(averages, own, 1 - kept)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  # as torch's own optimizers do
        if copied:
            torch._foreach_copy_(copies, copied)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]
        if self.lookahead:
            torch._foreach_copy_(own, averages)  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]

    @contextmanager
    def applied(self) -> Generator[None]:
        """Give the model the average for its weights inside the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for own, average in self._pairs():
            mine = local(own.detach())
            kept = mine.clone()
            mine.copy_(local(average))
            local(average).copy_(kept)

    def _pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the model's weights and buffers, each with its average."""
        own = (*self.model.parameters(), *self.model.buffers())
        return zip(own, (*self._weights, *self._buffers), strict=True)

    def state_dict(self) -> dict[str, Any]:
        """Return the average under the model's names."""
        average_of = {id(own): average for own, average in self._pairs()}
        own_state = self.model.state_dict(keep_vars=True)
        return {name: average_of.get(id(value), value) for name, value in own_state.items()}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load an average. KeyError or RuntimeError if it belongs to another model."""
        for name, average in self.state_dict().items():
            if isinstance(average, Tensor):
                local(average).copy_(local(state[name]))
