"""Build one part from its configuration.

Hydra's ``instantiate`` would resolve what is left of a reference in a text once more, and call what
``${oc.create:...}`` describes there, which nothing has checked.
"""

import importlib
import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from types import NoneType
from typing import Any

import torch

from framework.config.foreign_models import advice, is_foreign, prepare, secured
from framework.config.rule import Rule
from framework.config.signature import static_signature
from framework.config.targets import SPECIAL, Config, check_name, data_name, targets
from framework.contracts.training import Schedule
from framework.errors import ConfigError, words_of
from framework.schedule.constant import Constant
from framework.schedule.torch_schedule import TorchSchedule
from framework.system.user_code import raise_if_user_error

PLAIN = {str, int, float, bool, NoneType}
PER = "per"  # the key that says when a scheduler of torch takes a step
EPOCHS = "warmup_epochs"
OPTIMIZER = "optimizer"  # the argument that tells a scheduler of torch


def build(where: str, block: Config, allowed: Sequence[str], **runtime: Any) -> Any:
    """Build the part that ``block`` describes.

    Args:
        where: The block's name in the configuration, for messages.
        block: ``_target_`` and its arguments.
        allowed: Prefixes of the user's packages.
        runtime: Arguments that come from the run.

    Raises:
        ConfigError: C101, C105, C106, C113.
        UserCodeError: U100 for an exception in the user's own code.
        ResourceError: R104 for a lack of memory.
    """
    return deferred(where, block, allowed)(**runtime)


def deferred(where: str, block: Config, allowed: Sequence[str]) -> Callable[..., Any]:
    """Check a block, and return a picklable function that makes its part, as ``build`` does."""
    for place, inner in targets(block, where):
        check_name(place, inner["_target_"], allowed)
        _check_resolved(place, inner["_target_"], allowed)
    block = _secured(where, block, allowed)
    with _explained(where, block, allowed):
        made = _made({**block, "_partial_": True})
    return partial(_call, where, block, tuple(allowed), made)


def _call(
    where: str,
    block: Config,
    allowed: Sequence[str],
    made: partial[Any],
    /,
    *args: Any,
    **runtime: Any,
) -> Any:
    if both := sorted(made.keywords.keys() & runtime.keys()):
        what = "comes from the run, not from the configuration"
        raise ConfigError(106, f"{where}.{both[0]}", what, "remove it")
    arguments = {**made.keywords, **runtime}
    with _explained(where, block, allowed):
        _check_arguments(where, made.func, made.args, arguments)
        return made.func(*made.args, *args, **arguments)


@contextmanager
def _explained(where: str, block: Config, allowed: Sequence[str]) -> Generator[None]:
    """Turn an error of the part that ``block`` describes into one of the configuration."""
    try:
        yield
    except Exception as error:
        raise_if_user_error(error, allowed, fix=f"correct it, or the arguments of {where}")
        if isinstance(error, TypeError | ValueError | RuntimeError):
            raise _refused(where, block, error) from error
        raise


def _made(node: Any) -> Any:
    """Return a value in which every block with a ``_target_`` is what the target makes of it."""
    if isinstance(node, list):
        return [_made(item) for item in node]
    if not isinstance(node, dict):
        return node
    values = node
    if node.get("_recursive_", True):
        values = {key: _made(value) for key, value in node.items()}
    if "_target_" not in node:
        return values
    keywords = {key: value for key, value in values.items() if key not in SPECIAL}
    call = partial(_resolve(node["_target_"]), *(values.get("_args_") or ()), **keywords)
    return call if node.get("_partial_") else call()


def _secured(where: str, node: Any, allowed: Sequence[str]) -> Any:
    """Return a block in which every model of another library has the arguments that it needs."""
    if isinstance(node, list):
        return [_secured(f"{where}.{key}", item, allowed) for key, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    block = secured(where, node, allowed)
    return {key: _secured(f"{where}.{key}", item, allowed) for key, item in block.items()}


def _refused(where: str, block: Any, error: BaseException) -> ConfigError:
    place = f"{where} = {data_name(block)}"
    what = last_line(error)
    fix = f"add {where}.nesterov=false" if "Nesterov" in what else "correct its arguments"
    return ConfigError(113, place, what, fix)


def _check_resolved(where: str, target: str, allowed: Sequence[str]) -> None:
    """Check that a target can be found, and what the user's packages define is their own.

    ConfigError C105 for another package's function inside the user's, as in ``mypkg.os.system``.
    """
    place = f"{where}._target_ = {target}"
    try:
        prepare(target)
        part = _resolve(target)
    except Exception as error:
        raise_if_user_error(error, allowed, fix=f"correct it: {place} cannot be loaded")
        # a torchvision of another torch raises RuntimeError
        if isinstance(error, ImportError | AttributeError | RuntimeError):
            what = f"cannot be found ({words_of(error)})"
            raise ConfigError(105, place, what, advice(target)) from error
        raise
    packages = tuple(allowed)
    if is_foreign(target):
        packages = (*packages, f"{target.partition('.')[0]}.")
    home = f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', '')}"
    if target.startswith(packages) and not (callable(part) and home.startswith(packages)):
        what = f"is really {home}, which is not in a package that you allowed"
        raise ConfigError(105, place, what, "name the module that defines it")


def _resolve(target: str) -> Any:
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            part: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise
        for attribute in parts[cut:]:
            part = getattr(part, attribute)
        return part
    raise ImportError(f"no module named {parts[0]!r}")


def _check_arguments(
    where: str, function: Callable[..., Any], args: Sequence[Any], keywords: Config
) -> None:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # built in C
        return
    try:
        bound = signature.bind(*args, **keywords)
    except TypeError as error:
        what = f"{function.__qualname__}: {error}"
        raise ConfigError(106, where, what, "correct its keys") from error
    for name, value in bound.arguments.items():
        # only plain types are compared: the part itself checks all others
        rule = Rule(signature.parameters[name].annotation)
        is_plain = rule.kind is not NoneType and set(rule.kinds) <= PLAIN
        if is_plain and not rule.is_kind(value):
            raise rule.error(f"{where}.{name}", value)


def last_line(error: BaseException) -> str:
    """Return the message of an exception on one line."""
    return words_of(error) or type(error).__name__


def takes_optimizer(block: Config) -> bool:
    """Return whether a block describes a scheduler of torch, which takes an optimizer."""
    signature = static_signature(str(block["_target_"]))
    return signature is not None and OPTIMIZER in signature.names


def build_schedule(
    block: Config,
    allowed: Sequence[str],
    optimizer: torch.optim.Optimizer,
    warmup_steps: float | None,
) -> tuple[Schedule, TorchSchedule | None]:
    """Return the schedule, and the scheduler of torch that sets the rates in its place, if any.

    Args:
        block: The block ``schedule``.
        allowed: Prefixes of the user's packages.
        optimizer: With the rates of the start.
        warmup_steps: Scaled, if the schedule has a warm-up.
    """
    if not takes_optimizer(block):
        own = {key: value for key, value in block.items() if key != EPOCHS}
        if "warmup_steps" in own:
            own["warmup_steps"] = int(warmup_steps or 0)
        return build("schedule", own, allowed), None
    own = {key: value for key, value in block.items() if key != PER}

    def make(stand_in: torch.optim.Optimizer) -> Any:
        return _scheduler("schedule", own, allowed, stand_in)

    name = str(block["_target_"])
    return Constant(), TorchSchedule(make, optimizer, block.get(PER, "step"), name)


def _scheduler(
    where: str, block: Config, allowed: Sequence[str], optimizer: torch.optim.Optimizer
) -> Any:
    """Build a scheduler, after those in its lists, as SequentialLR and ChainedScheduler have."""
    inner: Config = {OPTIMIZER: optimizer}
    for key, value in block.items():
        if isinstance(value, list) and value and all(_describes(item) for item in value):
            inner[key] = [
                _scheduler(f"{where}.{key}.{number}", item, allowed, optimizer)
                for number, item in enumerate(value)
            ]
    outer = {key: value for key, value in block.items() if key not in inner}
    return build(where, outer, allowed, **inner)


def _describes(item: Any) -> bool:
    return isinstance(item, dict) and "_target_" in item and takes_optimizer(item)
