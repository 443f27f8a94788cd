"""Patterns that name the parameters and modules of a model."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

MOST_SHOWN = 12  # names in a message


def is_match(name: str, patterns: str | Sequence[str]) -> bool:
    """Return whether a pattern matches a parameter's name, or that of a module around it.

    ``head`` matches ``head.weight``, and ``*.norm?`` matches ``layers.0.norm1.bias``.
    """
    if isinstance(patterns, str):
        patterns = [patterns]
    parts = name.split(".")
    places = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    return any(fnmatchcase(place, pattern) for pattern in patterns for place in places)


def matching(patterns: str | Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the names that ``is_match`` accepts, in their order."""
    return [name for name in names if is_match(name, patterns)]


def what_model_has(pattern: str, names: Iterable[str]) -> str:
    """Return the part of a message that says which names are near a pattern without a match.

    These are the modules and parameters inside the innermost module that the pattern names.
    """
    paths = [name.split(".") for name in names]
    inside: list[str] = []
    for part in pattern.split("."):
        deeper = [*inside, part]
        if not any(path[: len(deeper)] == deeper for path in paths):
            break
        inside = deeper
    depth = len(inside) + 1
    near = dict.fromkeys(".".join(path[:depth]) for path in paths if path[: depth - 1] == inside)
    shown = list(near)[:MOST_SHOWN]
    if len(near) > len(shown):
        shown.append("...")
    return f"the model has {', '.join(shown)}"
