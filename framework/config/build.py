"""Build one part from its configuration.

Hydra's ``instantiate`` would resolve what is left of a reference in a text once more, and call what
``${oc.create:...}`` describes there, which nothing has checked.
"""

import importlib
import inspect
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from types import NoneType
from typing import Any

import torch

from framework.config.rule import Rule
from framework.config.targets import (
    SPECIAL,
    Config,
    check_name,
    data_name,
    is_foreign,
    secured,
    static_signature,
    targets,
)
from framework.contracts.training import Schedule
from framework.errors import ConfigError, words_of
from framework.schedule.constant import Constant
from framework.schedule.torch_schedule import TorchSchedule
from framework.system.user_code import pip_install, raise_if_user_error

PLAIN = {str, int, float, bool, NoneType}
OPTIMIZER = "optimizer"  # the argument that tells a scheduler of torch
EXTRAS = {"timm": "timm", "torchvision": "timm", "transformers": "huggingface"}


def build(where: str, block: Config, allowed: Sequence[str], **runtime: Any) -> Any:
    """Build the part that ``block`` describes, after those inside it.

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
    with _named_errors(where, block, allowed):
        return _checked(where, block, allowed, runtime)()


def maker(where: str, block: Config, allowed: Sequence[str], **examples: Any) -> partial[Any]:
    """Return what makes the part that ``block`` describes, from the arguments of ``examples``.

    It has been checked with these examples of values, and can be pickled.
    """
    with _named_errors(where, block, allowed):
        whole = _checked(where, block, allowed, examples)
    own = {key: value for key, value in whole.keywords.items() if key not in examples}
    return partial(whole.func, *whole.args, **own)


def _checked(
    where: str, block: Config, allowed: Sequence[str], runtime: dict[str, Any]
) -> partial[Any]:
    """Return the checked call that makes a part, after the parts inside it were built."""
    made = _made({**_secured(where, block, allowed), "_partial_": True})
    if both := sorted(made.keywords.keys() & runtime.keys()):
        what = "comes from the run, not from the configuration"
        raise ConfigError(106, f"{where}.{both[0]}", what, "remove it")
    whole = partial(made, **runtime)
    _check_arguments(where, whole)
    return whole


@contextmanager
def _named_errors(where: str, block: Config, allowed: Sequence[str]) -> Generator[None]:
    """Check the targets of a block, and name the block in errors of building it."""
    for place, inner in targets(block, where):
        check_name(place, inner["_target_"], allowed)
        _check_resolved(place, inner["_target_"], allowed)
    try:
        yield
    except Exception as error:
        raise_if_user_error(error, allowed, fix=f"correct it, or the arguments of {where}")
        if isinstance(error, TypeError | ValueError | RuntimeError):
            what = words_of(error)
            fix = "correct its arguments"
            if "Nesterov" in what:
                fix = f"add {where}.nesterov=false"
            raise ConfigError(113, f"{where} = {data_name(block)}", what, fix) from error
        raise


def _secured(where: str, node: Any, allowed: Sequence[str]) -> Any:
    """Return a block in which every model of another library has the arguments that it needs."""
    if isinstance(node, list):
        return [_secured(f"{where}.{key}", item, allowed) for key, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    block = secured(where, node, allowed)
    return {key: _secured(f"{where}.{key}", item, allowed) for key, item in block.items()}


def _made(node: Any) -> Any:
    """Return a value in which every block with a ``_target_`` is what the target makes of it."""
    if isinstance(node, list):
        return [_made(item) for item in node]
    if not isinstance(node, dict):
        return node
    values = {key: _made(value) for key, value in node.items()}
    if "_target_" not in node:
        return values
    keywords = {key: value for key, value in values.items() if key not in SPECIAL}
    call = partial(_resolve(node["_target_"]), *(values.get("_args_") or ()), **keywords)
    return call if node.get("_partial_") else call()


def _check_resolved(where: str, target: str, allowed: Sequence[str]) -> None:
    """Check that a target can be found, and what the user's packages define is their own.

    ConfigError C105 for another package's function inside the user's, as in ``mypkg.os.system``.
    """
    place = f"{where}._target_ = {target}"
    package = target.partition(".")[0]
    packages = tuple(allowed)
    fix = "correct the name"
    if is_foreign(target):
        packages = (*packages, f"{package}.")
        fix = f"{pip_install(EXTRAS[package])}, or correct the name"
    try:
        if is_foreign(target) and package == "transformers":  # keep it off the network, and quiet
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
            from transformers.utils import logging  # noqa: PLC0415

            logging.set_verbosity_error()
            logging.disable_progress_bar()
        part = _resolve(target)
    except Exception as error:
        raise_if_user_error(error, allowed, fix=f"correct it: {place} cannot be loaded")
        # a torchvision of another torch raises RuntimeError
        if isinstance(error, ImportError | AttributeError | RuntimeError):
            what = f"cannot be found ({words_of(error)})"
            raise ConfigError(105, place, what, fix) from error
        raise
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
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                continue
            raise
        for attribute in parts[cut:]:
            part = getattr(part, attribute)
        return part
    raise ImportError(f"no module named {parts[0]!r}")


def _check_arguments(where: str, call: partial[Any]) -> None:
    """Check the names of arguments, and values of plain types. ConfigError C101 or C106."""
    try:
        signature = inspect.signature(call.func)
    except (ValueError, TypeError):  # built in C
        return
    try:
        bound = signature.bind(*call.args, **call.keywords)
    except TypeError as error:
        what = f"{call.func.__qualname__}: {error}"
        raise ConfigError(106, where, what, "correct its keys") from error
    for name, value in bound.arguments.items():
        # only plain types are compared: the part itself checks all others
        rule = Rule(signature.parameters[name].annotation)
        is_plain = rule.kind is not NoneType and set(rule.kinds) <= PLAIN
        if is_plain and not rule.is_kind(value):
            raise rule.error(f"{where}.{name}", value)


def takes_optimizer(block: Any) -> bool:
    """Return whether a value is a block of a scheduler of torch, which takes an optimizer."""
    if not isinstance(block, dict) or "_target_" not in block:
        return False
    signature = static_signature(str(block["_target_"]))
    return signature is not None and OPTIMIZER in signature.names


def build_schedule(
    block: Config,
    allowed: Sequence[str],
    optimizer: torch.optim.Optimizer,
    warmup_steps: float | None,
) -> tuple[Schedule, TorchSchedule | None]:
    """Return the schedule, and the scheduler of torch that sets the rates in its place, if any.

    The optimizer has the rates of the start, and ``warmup_steps`` are scaled.
    """
    if not takes_optimizer(block):
        own = {key: value for key, value in block.items() if key != "warmup_epochs"}
        if "warmup_steps" in own:
            own["warmup_steps"] = int(warmup_steps or 0)
        return build("schedule", own, allowed), None
    own = {key: value for key, value in block.items() if key != "per"}

    def make(stand_in: torch.optim.Optimizer) -> Any:
        return _scheduler("schedule", own, allowed, stand_in)

    name = str(block["_target_"])
    return Constant(), TorchSchedule(make, optimizer, block.get("per", "step"), name)


def _scheduler(
    where: str, block: Config, allowed: Sequence[str], optimizer: torch.optim.Optimizer
) -> Any:
    """Build a scheduler, after those in its lists, as SequentialLR and ChainedScheduler have."""
    inner: Config = {OPTIMIZER: optimizer}
    for key, value in block.items():
        if isinstance(value, list) and value and all(map(takes_optimizer, value)):
            inner[key] = [
                _scheduler(f"{where}.{key}.{number}", item, allowed, optimizer)
                for number, item in enumerate(value)
            ]
    outer = {key: value for key, value in block.items() if key not in inner}
    return build(where, outer, allowed, **inner)
