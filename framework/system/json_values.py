"""Values from JSON files that may be damaged, incomplete or of an older version."""

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from framework.errors import printable
from framework.system.run_dir import open_file

GREATEST = 1e15  # a rate or a time above it cannot have been measured
LONGEST = 500  # characters of a shown text: a configuration may hold a whole file


def parsed(text: bytes) -> dict[str, Any]:
    """Return the object that ``text`` holds; {} if it holds anything else."""
    with suppress(ValueError, RecursionError):
        return mapping(json.loads(text))
    return {}


def lines_of(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the object in each line of ``path``; {} for a line that holds anything else."""
    with open_file(path) as file:
        yield from map(parsed, file)


def mapping(value: Any) -> dict[str, Any]:
    """Return ``value`` if it is an object, else {}."""
    if not isinstance(value, dict):
        return {}
    return value


def words(value: Any) -> list[str]:
    """Return the items of a list as text; [] if ``value`` is no list."""
    return list(map(str, value)) if isinstance(value, list) else []


def number(value: Any) -> float | None:
    """Return ``value`` as a float, NaN and infinity included; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    with suppress(OverflowError):
        return float(value)
    return None


def positive(value: Any) -> float | None:
    """Return ``value`` if it is a number above 0 that can have been counted or measured."""
    return duration(value) or None


def duration(value: Any) -> float | None:
    """Return ``value`` if it is a number of seconds that can have been measured, 0 included."""
    amount = number(value)
    if amount is None or not 0 <= amount < GREATEST:
        return None
    return amount


def numbers(value: Any, read: Callable[[Any], float | None] = number) -> dict[str, float]:
    """Return the numbers of an object by name. ``read`` returns one of them, or None."""
    known = {shown(str(name)): read(item) for name, item in mapping(value).items()}
    return {name: item for name, item in known.items() if item is not None}


def flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested objects by dotted names; a list is a leaf."""
    leaves: dict[str, Any] = {}
    for name, item in mapping(value).items():
        key = f"{prefix}{name}"
        if item and isinstance(item, dict):
            leaves.update(flat(item, f"{key}."))
        else:
            leaves[key] = item
    return leaves


def facts_of(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return machine, versions and revision, by dotted names, from the start of a run or bench."""
    leaves = {
        **flat(value.get("machine"), "machine."),
        **flat(value.get("versions"), "versions."),
        "git": value.get("git"),
    }
    return {name: leaf for name, leaf in leaves.items() if leaf not in (None, "", [])}


def command_of(value: Any) -> str:
    """Return a command line as it can be typed again, without the folder of the program.

    The first word is not quoted: it may hold the program and its command.
    """
    program, *rest = words(value) or [""]
    return shown(" ".join([os.path.basename(program), *map(shlex.quote, rest)]))


def shown(value: Any) -> str:
    """Return ``value`` as one line of printable characters of limited length."""
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = printable(" ".join(value.split()))
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 1]}…"
    return text
