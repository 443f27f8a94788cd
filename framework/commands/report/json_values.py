"""JSON that others wrote, taken where it is of the kind that is wanted and left alone where it is not."""

import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from framework.errors import printable

GREATEST = 1e15  # of a rate or a time: what is more was not measured
LONGEST = 500  # letters of a text that is shown; a configuration may hold a whole file


def load(path: Path) -> dict[str, Any]:
    """The object in ``path``; {} where there is no such file, or it is not whole, or holds something else."""
    try:
        return mapping(json.loads(path.read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}


def mapping(value: Any) -> dict[str, Any]:
    """``value`` where it is an object, else {}."""
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """``value`` as a float, which may be NaN or infinite; None where it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def positive(value: Any) -> float | None:
    """``value`` where it is a number above 0 that something can have been counted or measured as."""
    found = number(value)
    return found if found is not None and 0 < found < GREATEST else None


def duration(value: Any) -> float | None:
    """``value`` where it can be seconds: 0 or more, and no age of the universe."""
    found = number(value)
    return found if found is not None and 0 <= found < GREATEST else None


def numbers(value: Any) -> dict[str, float]:
    """The numbers of an object, by name."""
    found = {str(name): number(item) for name, item in mapping(value).items()}
    return {name: item for name, item in found.items() if item is not None}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """The leaves of nested objects by dotted names; a list is a leaf."""
    if not isinstance(value, dict) or (not value and prefix):
        return {prefix: value} if prefix else {}
    leaves: dict[str, Any] = {}
    for name, item in value.items():
        leaves.update(flat(item, f"{prefix}.{name}" if prefix else str(name)))
    return leaves


def facts_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Machine, versions and revision, by dotted names, from what a run or a bench says of itself at its start."""
    leaves = {
        **flat(value.get("machine"), "machine"),
        **flat(value.get("versions"), "versions"),
        "git": value.get("git"),
    }
    return {name: leaf for name, leaf in leaves.items() if leaf not in (None, "", [])}


def command_of(value: Any) -> str:
    """A command line as it can be typed again. The program, whose folder is left out, and its command may be one word."""
    words = [str(word) for word in value] if isinstance(value, list) else []
    return shown(" ".join([*map(os.path.basename, words[:1]), *map(shlex.quote, words[1:])]))


def shown(value: Any) -> str:
    """``value`` in letters that can be shown, in one line, not endlessly long."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = printable(" ".join(text.split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
