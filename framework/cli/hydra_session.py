"""Hydra with our folders, our resolvers and the guard, for as long as one command needs it."""

import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from hydra import initialize_config_dir
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf

from framework.cli.config_source import RECIPES, SCHEME, CheckedFolder, set_users_folder
from framework.cli.environment import decode, read_environment
from framework.cli.guard import GuardedLoader
from framework.cli.options import time_stamp
from framework.config.paths import CONF, ROOT

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra


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
    _register()
    SearchFolders.config_dir = config_dir
    set_users_folder(config_dir)
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3", job_name=command):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        hydra.config_loader = GuardedLoader(hydra.config_loader, config_dir is not None)
        yield hydra


def _register() -> None:
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


stamp = cache(time_stamp)  # of this command


def slug(text: str) -> str:
    """Return ``text`` as part of a directory's name: only harmless letters, at most 120."""
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)[:120]
