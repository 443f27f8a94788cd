"""Configuration to one part: the only caller of Hydra's ``instantiate``.

Configuration values and runtime objects never travel together: the values make a partial, which is then called with the objects,
so that no live object passes through OmegaConf.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, get_args

import torch
from hydra.utils import instantiate

from framework.config.targets import Config, check_name, is_allowed, targets
from framework.errors import ConfigError, words_of
from framework.system.user_code import raise_if_user_error


def build(where: str, block: Config, allowed: Sequence[str], **runtime: Any) -> Any:
    """Make the part that ``block`` describes, handing it ``runtime`` objects. ConfigError C105, C106, C113."""
    for place, inner in targets(block, where):
        check_name(place, inner["_target_"], allowed)
        _check_resolved(place, inner["_target_"], allowed)
    try:
        deferred = instantiate({**block, "_partial_": True}, _convert_="all")
        if both := sorted(deferred.keywords.keys() & runtime.keys()):
            raise ConfigError(
                106,
                f"{where}.{both[0]}",
                "comes from the run, not from the configuration",
                "remove it",
            )
        arguments = {**deferred.keywords, **runtime}
        _check_arguments(where, deferred.func, deferred.args, arguments)
        return deferred.func(
            *deferred.args, **arguments
        )  # not deferred(): that checks Hydra's policy at each call, 80 us
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise_if_user_error(error, allowed, fix=f"mend it, or correct the arguments of {where}")
        if isinstance(error, TypeError | ValueError | RuntimeError):
            raise _refused(where, block, error) from error
        if type(error).__module__.startswith(("hydra.", "omegaconf.")):
            raise _refused(where, block, error.__cause__ or error) from error
        raise


def _refused(where: str, block: Config, error: BaseException) -> ConfigError:
    return ConfigError(
        113, f"{where} = {block['_target_']}", last_line(error), "correct its arguments"
    )


def _check_resolved(where: str, target: str, allowed: Sequence[str]) -> None:
    """What the name stands for must live where the name says: ``framework.cli.os.system`` does not."""
    try:
        found = _resolve(target)
    except Exception as error:
        raise_if_user_error(
            error, allowed, fix=f"mend it: {where}._target_ = {target} cannot be loaded"
        )
        if isinstance(error, ImportError | AttributeError):
            what = f"cannot be found ({words_of(error)})"
            raise ConfigError(
                105, f"{where}._target_ = {target}", what, "correct the name"
            ) from error
        raise
    home = f"{getattr(found, '__module__', '')}.{getattr(found, '__qualname__', '')}"
    if not callable(found) or not is_allowed(home, allowed):
        raise ConfigError(
            105,
            f"{where}._target_ = {target}",
            f"is really {home}, which is not on the list",
            "name it where it is defined",
        )


def _resolve(target: str) -> Any:
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            found: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
                continue
            raise
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
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
        raise ConfigError(
            106, where, f"{function.__qualname__}: {error}", "correct its keys"
        ) from error
    for name, value in bound.arguments.items():
        if wanted := _misfit(signature.parameters[name].annotation, value):
            raise ConfigError(
                101, f"{where}.{name} = {value}", "not a value it can have", f"give {wanted}"
            )


def _misfit(annotation: Any, value: Any) -> str | None:
    """The types a plainly annotated argument takes, where ``value`` is none of them. Anything but plain types is the part's to check."""
    kinds: tuple[Any, ...] = (
        get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
    )
    if not all(kind in (str, int, float, bool, type(None)) for kind in kinds) or kinds == (
        type(None),
    ):
        return None
    fits = isinstance(value, kinds) or (float in kinds and isinstance(value, int))
    if fits and not (isinstance(value, bool) and bool not in kinds):
        return None
    return " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)


def last_line(error: BaseException) -> str:
    """What ``error`` says, on one line."""
    return words_of(error) or type(error).__name__
