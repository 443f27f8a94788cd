"""Packages that only some choices need: the extras of ``pyproject.toml``."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import requires
from shlex import quote
from typing import Any

from framework.errors import ConfigError, ResourceError

Step = Mapping[str, Any]  # one step of another library's pipeline: name and params


def needed(module: str, extra: str) -> None:
    """Raise ResourceError R112, which names the packages, unless ``module`` can be imported."""
    try:
        import_module(module)
    except ImportError as error:
        what = f"is not installed ({error})"
        raise ResourceError(112, module, what, pip_install(extra)) from error


def pip_install(extra: str) -> str:
    """Return the command that installs the packages of an extra, as the registry knows them."""
    words = ["pip install"]
    for line in requires("paceline") or []:
        package, _, condition = line.partition(";")
        if f"extra == '{extra}'" in condition.replace('"', "'"):
            words.append(quote(package.strip()))
    return " ".join(words)


def make_step(
    library: str,
    kinds: Mapping[str, Any],
    step: Step,
    where: str,
    keys: Sequence[str] = ("name", "params"),
    **inner: Any,
) -> Any:
    """Return an object of the class in ``kinds`` that a step of a pipeline names.

    Args:
        library: The library's name, for messages.
        kinds: Its classes.
        step: The class's name, and its parameters.
        where: The step's place in the configuration.
        keys: The keys that a step may have.
        inner: Further arguments of the class.
    """
    if unknown := sorted(step.keys() - set(keys)):
        fix = f"a step has {', '.join(keys)}"
        raise ConfigError(131, f"{where}.{unknown[0]}", "not a key of a step", fix)
    name = str(step.get("name"))
    if name not in kinds:
        fix = f"name a class of {library}"
        if close := get_close_matches(name, kinds, n=1):
            fix = f"did you mean {close[0]}?"
        raise ConfigError(130, f"{where}.name = {name}", f"{library} has no such class", fix)
    try:
        return kinds[name](**(step.get("params") or {}), **inner)
    except (TypeError, ValueError, RuntimeError, AssertionError, UserWarning) as error:
        what = " ".join(str(error).split())[:300]
        raise ConfigError(131, f"{where} = {name}", what, "correct its params") from error
