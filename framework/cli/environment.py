"""What comes from the environment may be a secret: a run directory keeps the name of the variable, never its value."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

LEAST_LETTERS = 4  # shorter ones are no secrets, and stand in every other word
_REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")


def as_written(config: DictConfig) -> dict[str, Any]:
    """Plain values, every reference filled in but those to the environment, wherever they lead from: ``${oc.env:NAME}`` stays."""
    with _environment_unread():
        return _plain(config)


def _plain(node: Any) -> Any:
    if isinstance(node, DictConfig):
        return {str(key): _value(node, key) for key in node}
    if isinstance(node, ListConfig):
        return [_value(node, number) for number in range(len(node))]
    return node


def _value(node: DictConfig | ListConfig, key: Any) -> Any:
    """What stands there; its own text where that cannot be known without the environment."""
    try:
        return _plain(node[key])
    except (OmegaConfBaseException, RecursionError):
        unresolved: Any = OmegaConf.to_container(node, resolve=False)
        return unresolved[key]


@contextmanager
def _environment_unread() -> Generator[None, None, None]:
    OmegaConf.register_new_resolver("oc.env", _named, replace=True)
    OmegaConf.register_new_resolver("oc.decode", _decoded_later, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)
        OmegaConf.register_new_resolver("oc.decode", oc.decode, replace=True)


def _named(key: str, *default: Any) -> Any:
    return f"${{oc.env:{key}}}" if key in os.environ else oc.env(key, *default)


def _decoded_later(text: Any, _parent_: Any, _node_: Node) -> Any:
    return (
        f"${{oc.decode:{text}}}"
        if _REFERENCE.search(str(text))
        else oc.decode(text, _parent_, _node_)
    )


def without_values(text: str, run_dir: Path) -> str:
    """``text`` with the values that the run in ``run_dir`` took from the environment as references to it: errors quote what they are about."""
    for value, reference in _taken(run_dir):
        for form in (value, repr(value)[1:-1], " ".join(value.split())):
            text = text.replace(form, reference)
    return text


def _taken(run_dir: Path) -> list[tuple[str, str]]:
    """(value, reference), the longest first."""
    names: set[str] = set()
    for path in run_dir.glob("resolved*.json"):
        with suppress(OSError, UnicodeDecodeError):
            names.update(_REFERENCE.findall(path.read_text(encoding="utf-8")))
    found = [(os.environ.get(name, ""), f"${{oc.env:{name}}}") for name in names]
    return sorted(
        ((value, reference) for value, reference in found if len(value) >= LEAST_LETTERS),
        key=lambda one: -len(one[0]),
    )
