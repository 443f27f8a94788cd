"""Hydra with our folders, our resolvers and the guard, for as long as one command needs it."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, ListConfig, Node, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from framework.cli.guard import RECIPES, SCHEME, CheckedFolder, GuardedLoader, set_users_folder
from framework.cli.options import time_stamp
from framework.config.paths import CONF, ROOT
from framework.system.run_dir import note, redacted

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

_REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")


class SearchFolders(SearchPathPlugin):
    """Hydra's plugin that adds the folder of the recipes, and the user's folder."""

    config_dir: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(RECIPES, str(ROOT))
        if self.config_dir is not None:
            search_path.append("command-line", os.path.abspath(self.config_dir))
        for element in search_path.get_path():
            if "://" not in element.path or element.path.startswith("file://"):
                element.path = f"{SCHEME}://{element.path.removeprefix('file://')}"


@contextmanager
def hydra_session(command: str, config_dir: str | None = None) -> Generator["Hydra"]:
    """Start Hydra for ``conf/<command>.yaml``; ``hydra.compose`` works inside the block.

    Args:
        command: The name of the job.
        config_dir: The user's folder of groups and recipes.
    """
    plugins = Plugins.instance()
    if SearchFolders not in plugins.discover(SearchPathPlugin):
        plugins.register(SearchFolders)
    if CheckedFolder not in plugins.discover(ConfigSource):
        plugins.register(CheckedFolder)
    stamp.cache_clear()
    # The value is fixed now, for the processes to which a launcher sends the resolver.
    now = stamp()
    OmegaConf.register_new_resolver("stamp", lambda: now, replace=True)
    OmegaConf.register_new_resolver("slug", slug, replace=True)
    OmegaConf.register_new_resolver("oc.env", read_environment, replace=True)
    OmegaConf.register_new_resolver("oc.decode", decode, replace=True)
    SearchFolders.config_dir = config_dir
    set_users_folder(config_dir)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3", job_name=command):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.config_loader = GuardedLoader(hydra.config_loader, config_dir is not None)
        yield hydra


stamp = cache(time_stamp)  # of this command


def slug(text: str) -> str:
    """Return ``text`` as part of a directory's name: only harmless letters, at most 120."""
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)[:120]


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

    def named(key: str, *default: Any) -> Any:
        return f"${{oc.env:{key}}}" if key in os.environ else oc.env(key, *default)

    def decoded_later(text: Any, _parent_: Any, _node_: Node) -> Any:
        if _REFERENCE.search(str(text)):
            return f"${{oc.decode:{text}}}"
        return oc.decode(text, _parent_, _node_)

    def plain(node: Any) -> Any:
        if not isinstance(node, DictConfig | ListConfig):
            return node
        keys = list(node) if isinstance(node, DictConfig) else list(range(len(node)))
        values: dict[Any, Any] = {}
        for key in keys:
            try:
                values[key] = plain(node[key])
            except (OmegaConfBaseException, RecursionError):  # its own text needs the environment
                unresolved: Any = OmegaConf.to_container(node, resolve=False)
                values[key] = unresolved[key]
        if isinstance(node, ListConfig):
            return list(values.values())
        return {str(key): value for key, value in values.items()}

    OmegaConf.register_new_resolver("oc.env", named, replace=True)
    OmegaConf.register_new_resolver("oc.decode", decoded_later, replace=True)
    try:
        return plain(config)
    finally:
        OmegaConf.register_new_resolver("oc.env", read_environment, replace=True)
        OmegaConf.register_new_resolver("oc.decode", decode, replace=True)
