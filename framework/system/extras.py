"""Packages that only some commands need, and that the extras of ``pyproject.toml`` install."""

from importlib import import_module

from framework.errors import ResourceError


def needed(module: str, extra: str) -> None:
    """Check that ``module``, which is imported only when it is used, can be imported.

    Raises:
        ResourceError: R112 if it cannot; the message names the extra that installs it.

    """
    try:
        import_module(module)
    except ImportError as error:
        fix = f"pip install 'paceline[{extra}]'"
        raise ResourceError(112, module, f"is not installed ({error})", fix) from error
