"""A limit on what OmegaConf resolves: OmegaConf has none, and ten lines of YAML can ask for a
terabyte.
"""

from typing import Any

from omegaconf import Container, Node
from omegaconf.errors import InterpolationResolutionError

MOST_REFERENCES = 1000
MOST_CHARACTERS = 1 << 20
RESOLVE = Container.resolve_parse_tree


class _Resolved:
    """How much was resolved since the last ``count_references_anew``."""

    texts = 0
    characters = 0


_resolved = _Resolved()


def limit_references() -> None:
    """Install the limit. Calling it twice is harmless.

    OmegaConf's public API has no place for it: docs/design/0012-guard.md.
    """
    Container.resolve_parse_tree = _limited


def count_references_anew() -> None:
    """Count from zero, before a configuration is resolved as a whole."""
    _resolved.texts = 0
    _resolved.characters = 0


def _limited(self: Container, parse_tree: Any, node: Node, *more: Any, **options: Any) -> Any:
    """Resolve one text with references, or say that there are too many."""
    _resolved.texts += 1
    if _resolved.texts > MOST_REFERENCES:
        what = f"expands to more than {MOST_REFERENCES:,} references"
        raise InterpolationResolutionError(what)
    value = RESOLVE(self, parse_tree, node, *more, **options)
    # The text counts too: it may hold thousands of references that resolve to nothing.
    for text in (node._value(), value):  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        if isinstance(text, str):
            _resolved.characters += len(text)
    if _resolved.characters > MOST_CHARACTERS:
        what = f"expands to more than {MOST_CHARACTERS:,} characters"
        raise InterpolationResolutionError(what)
    return value
