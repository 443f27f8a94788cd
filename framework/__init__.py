"""Paceline trains PyTorch models without waiting for data, and shows where the time of each step
goes.

``framework/__init__.pyi`` lists the Python API. Each name is imported when it is first used, so
that ``import framework`` costs nothing:

    import framework

    store = framework.open_store("train.h5")
    print(store.manifest.num_records)
"""

import sys

if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    module_name = sys.orig_argv[sys.orig_argv.index("-m") + 1]
    if module_name.split(".")[0] == __name__:
        # ``python -m framework`` puts the present folder first, which may be somebody else's
        del sys.path[0]

import ast
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.1.0"


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Return the module of every name of the API, and the name that it has there."""
    tree = ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    homes = {part.name: (str(node.module), part.name) for node in imports for part in node.names}
    homes["pack_store"] = homes.pop("pack")  # ``framework.pack`` is a folder
    return homes


def __getattr__(name: str) -> Any:
    if name.startswith("_") or name not in _homes():
        raise AttributeError(f"module 'framework' has no attribute '{name}'")
    module, name_there = _homes()[name]
    value = getattr(import_module(module), name_there)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
