"""Values from JSON files that may be damaged, incomplete or of an older version."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from framework.errors import printable
from framework.system.run_dir import open_file

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
    return value if isinstance(value, dict) else {}


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


def numbers(value: Any) -> dict[str, float]:
    """Return the numbers of an object by name."""
    known = {shown(str(name)): number(item) for name, item in mapping(value).items()}
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


def shown(value: Any) -> str:
    """Return ``value`` as one line of printable characters of limited length."""
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=str)
    text = printable(" ".join(value.split()))
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
