"""The files of a run directory that a tracking server gets."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from framework.system.run_dir import read_json


def read_config(path: Path | None) -> dict[str, str]:
    """Return the leaves of a configuration as texts by dotted names; {} if it cannot be read."""
    if path is None:
        return {}
    with suppress(OSError, ValueError):
        return _leaves(read_json(path), "")
    return {}


def _leaves(node: Any, name: str) -> dict[str, str]:
    if isinstance(node, dict) and node:
        leaves: dict[str, str] = {}
        for key, value in node.items():
            leaves |= _leaves(value, f"{name}.{key}".removeprefix("."))
        return leaves
    return {name: node if isinstance(node, str) else json.dumps(node)}


def inside(run_dir: Path, name: object) -> Path | None:
    """Return the file ``name`` of a run directory; None if there is none.

    A name that leads out of the directory, also by a link, is none: a run directory may come from
    somebody else, and its files are sent.
    """
    path = run_dir / str(name)
    with suppress(OSError, ValueError):
        is_ours = path.resolve().is_relative_to(run_dir.resolve())
        if is_ours and path.is_file():
            return path
    return None
