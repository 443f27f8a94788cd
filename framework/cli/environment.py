"""Read the environment for a configuration, and write the configuration without its values."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from framework.system.redaction import note, redacted

_REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")


def read_environment(key: str, *default: Any) -> Any:
    """Resolve ``${oc.env:NAME}``, and keep the value out of the files of runs."""
    note([key])
    return oc.env(key, *default)


def decode(text: Any, _parent_: Any, _node_: Node) -> Any:
    """Resolve ``${oc.decode:...}``. No block comes from the environment: its keys name files."""
    value = oc.decode(text, _parent_, _node_)
    if isinstance(value, dict | DictConfig) and redacted(text) != text:
        raise ValueError(f"{redacted(text)} is a block, whose keys would be in files; write it out")
    return value


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
        OmegaConf.register_new_resolver("oc.env", read_environment, replace=True)
        OmegaConf.register_new_resolver("oc.decode", decode, replace=True)


def _named(key: str, *default: Any) -> Any:
    if key in os.environ:
        return f"${{oc.env:{key}}}"
    return oc.env(key, *default)


def _decoded_later(text: Any, _parent_: Any, _node_: Node) -> Any:
    if _REFERENCE.search(str(text)):
        return f"${{oc.decode:{text}}}"
    return oc.decode(text, _parent_, _node_)
