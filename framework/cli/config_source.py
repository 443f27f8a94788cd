"""Folders of configuration files that are checked before YAML or Hydra reads them."""

import os
from io import StringIO
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from framework.cli import precedence
from framework.cli.yaml_limits import MOST_NODES, count_nodes, read_text, too_much, unreadable
from framework.errors import ConfigError

SCHEME = "paceline"
RECIPES = "paceline"  # the provider of our recipes
# Our own defaults lists have about 30 entries, each of which Hydra follows once.
MOST_ENTRIES = 1000
HEADER_CHARACTERS = 512  # as many as Hydra searches for "# @package"
# Hydra imports a package to look into it. These hold configurations and nothing else.
PACKAGES = ("hydra.conf.", "hydra_plugins.")


class _Spent:
    """What the present composition has read: followed entries, the newest last, and nodes."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.nodes = 0


_spent = _Spent()
_users_folder: str | None = None


def begin_composition() -> None:
    """Count files and entries of defaults lists from zero."""
    global _spent  # noqa: PLW0603  # Hydra makes the sources itself, and copies them
    _spent = _Spent()


def set_users_folder(folder: str | None) -> None:
    """Remember the user's folder, whose files ours would hide."""
    global _users_folder  # noqa: PLW0603  # Hydra makes the sources itself, and copies them
    _users_folder = folder


def _check_hidden(name: str, path: str) -> None:
    """Check that the file at ``path``, which Hydra reads for ``name``, hides none of the user's.

    Raises:
        ConfigError: C206 if it does.
    """
    if _users_folder is None:
        return
    hidden = os.path.join(_users_folder, name)
    if os.path.isfile(hidden) and not os.path.samefile(hidden, path):
        what = "has the name of a file of Paceline, which Hydra reads instead"
        raise ConfigError(206, hidden, what, "rename it")


def endless() -> ConfigError:
    """Return the ConfigError C117 that names the newest entries, which are the circle if one
    exists.
    """
    newest = list(dict.fromkeys(_spent.entries[:-9:-1]))
    what = "lists of defaults that lead back to themselves, or are far too long"
    return ConfigError(
        117, " -> ".join(reversed(newest)), what, "take the entry out that leads back"
    )


def checked_places(places: list[str]) -> list[str]:
    """Return a search path whose folders are read by ``CheckedFolder``.

    Raises:
        ConfigError: C125 for a package that does not hold configurations.
    """
    checked: list[str] = []
    for place in places:
        scheme, separator, path = place.rpartition("://")
        name = path.replace("/", ".").rstrip(".") + "."
        if scheme == "pkg" and not name.startswith(PACKAGES):
            fix = "give a folder: file://DIR, or --config-dir DIR"
            what = "would import a package that no list checks"
            raise ConfigError(125, f"hydra.searchpath = {place}", what, fix)
        is_folder = not separator or scheme == "file"
        checked.append(f"{SCHEME}://{path}" if is_folder else place)
    return checked


class CheckedFolder(ConfigSource):
    """Hydra's plugin for the folder of ``paceline://FOLDER``."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file and apply the rules of precedence to it.

        Raises:
            ConfigError: C114 or C115 for the file's text, C117 for a name outside the folder, C206
                if the file hides one of the user's.
        """
        file_name = self._normalize_file_name(config_path)
        path = os.path.normpath(self._place(file_name))
        if not path.startswith(os.path.join(os.path.normpath(self.path), "")):
            what = "leads out of the folders of configurations"
            raise ConfigError(117, config_path, what, "give a name inside them")
        if not os.path.exists(path):
            raise ConfigLoadError(f"Config not found : {path}")
        _check_hidden(file_name, path)
        text = read_text(path)
        _spent.nodes += count_nodes(path, text)
        if _spent.nodes > MOST_NODES:
            what = f"makes more than {MOST_NODES:,} values, with the files read before it"
            raise too_much(path, what)
        try:
            config: Any = OmegaConf.load(StringIO(text))
            header = self._get_header_dict(text[:HEADER_CHARACTERS])
            precedence.edit(config_path, path, header["package"] == "_global_", config)
        except (yaml.YAMLError, RecursionError, ValueError, OSError) as error:
            raise unreadable(path, error) from error
        _check_places_of(config)
        result = _CountedResult(self.provider, self.full_path(), config, header)
        result.name = config_path
        return result

    def available(self) -> bool:
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        return self._is_offered(config_path) and os.path.isdir(self._place(config_path))

    def is_config(self, config_path: str) -> bool:
        path = self._place(self._normalize_file_name(config_path))
        return self._is_offered(config_path) and os.path.isfile(path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names: list[str] = []
        for name in os.listdir(self._place(config_path)):
            path = os.path.join(config_path, name)
            self._list_add_result(names, path, name, results_filter)
        return sorted(set(names))

    def _is_offered(self, name: str) -> bool:
        """Return whether configurations may lie at ``name``: code lies beside our recipes."""
        return self.provider != RECIPES or name.partition("/")[0] in ("", "recipes")

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name)


class _CountedResult(ConfigResult):
    """A file as it was read. Hydra reads ``defaults_list`` each time it follows the file."""

    name = ""
    _entries: list[Any] | None = None

    @property
    def defaults_list(self) -> Any:
        _spent.entries.append(self.name)
        if len(_spent.entries) > MOST_ENTRIES:
            raise endless()
        return self._entries

    @defaults_list.setter
    def defaults_list(self, entries: Any) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._entries = entries


def _check_places_of(config: Any) -> None:
    """Have the folders of a file's own search path checked too. Only the primary file's counts."""
    if not OmegaConf.is_dict(config):
        return
    places: Any = OmegaConf.select(config, "hydra.searchpath")
    if OmegaConf.is_list(places) and all(isinstance(place, str) for place in places):
        OmegaConf.update(config, "hydra.searchpath", checked_places(list(places)))
