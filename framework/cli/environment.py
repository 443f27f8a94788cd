"""Keep secrets out of files: a run directory names environment variables, and never their
values.
"""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

# Shorter values are no secrets, and are part of every other word.
LEAST_LETTERS = 4
_REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")


def as_written(config: DictConfig) -> dict[str, Any]:
    """Return plain values with every reference resolved, except those to the environment."""
    with _environment_unread():
        return _plain(config)


def _plain(node: Any) -> Any:
    if isinstance(node, DictConfig):
        return {str(key): _value(node, key) for key in node}
    if isinstance(node, ListConfig):
        return [_value(node, number) for number in range(len(node))]
    return node


def _value(node: DictConfig | ListConfig, key: Any) -> Any:
    """Return a value, or its own text if that needs the environment."""
    try:
        return _plain(node[key])
    except (OmegaConfBaseException, RecursionError):
        unresolved: Any = OmegaConf.to_container(node, resolve=False)
        return unresolved[key]


@contextmanager
def _environment_unread() -> Generator[None, None, None]:
    """Have ``${oc.env:NAME}`` resolve to its own text."""
    OmegaConf.register_new_resolver("oc.env", _named, replace=True)
    OmegaConf.register_new_resolver("oc.decode", _decoded_later, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        OmegaConf.register_new_resolver("oc.decode", oc.decode, replace=True)


def _named(key: str, *default: Any) -> Any:
    if key in os.environ:
        return f"${{oc.env:{key}}}"
    return oc.env(key, *default)


def _decoded_later(text: Any, _parent_: Any, _node_: Node) -> Any:
    if _REFERENCE.search(str(text)):
        return f"${{oc.decode:{text}}}"
    return oc.decode(text, _parent_, _node_)


def without_values(text: str, run_dir: Path) -> str:
    """Replace values from the environment in ``text``, such as an error's, by references to
    them.
    """
    names: set[str] = set()
    for path in run_dir.glob("resolved*.json"):
        with suppress(OSError, UnicodeDecodeError):
            names.update(_REFERENCE.findall(path.read_text(encoding="utf-8")))
    values = {name: os.environ.get(name, "") for name in names}
    for name, value in sorted(values.items(), key=lambda item: -len(item[1])):
        if len(value) >= LEAST_LETTERS:
            for form in (value, repr(value)[1:-1], " ".join(value.split())):
                text = text.replace(form, f"${{oc.env:{name}}}")
    return text
