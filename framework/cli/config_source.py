"""Folders of configuration files that are checked before YAML or Hydra reads them."""

import os
from io import StringIO
from typing import Any

import yaml
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf
from yaml.reader import ReaderError

from framework.cli import precedence
from framework.errors import ConfigError

SCHEME = "paceline"
RECIPES = "paceline"  # the provider of our recipes
MOST_BYTES = 64 << 10  # Hydra reads a file of this size, twice, in less than a second
HEADER_CHARACTERS = 512  # as many as Hydra searches for "# @package"
# libyaml is 20 times as fast, but not every installation has it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_read: list[str] = []  # what the present composition has read, the newest last
_users_folder: str | None = None


def set_users_folder(folder: str | None) -> None:
    """Remember the user's folder, whose files ours would hide."""
    global _users_folder  # noqa: PLW0603  # Hydra makes the sources itself, and copies them
    _users_folder = folder


def endless() -> ConfigError:
    """Return the ConfigError C117 that names the files read last, which are the circle."""
    what = "lists of defaults that lead back to themselves"
    return ConfigError(117, " -> ".join(_read[-3:]), what, "take the entry out that leads back")


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
        inside = path.startswith(os.path.join(os.path.normpath(self.path), ""))
        if not inside or not self._is_offered(config_path):
            what = "leads out of the folders of configurations"
            raise ConfigError(117, config_path, what, "give a name inside them")
        if not os.path.exists(path):
            raise ConfigLoadError(f"Config not found : {path}")
        _check_hidden(file_name, path)
        _read.append(config_path)
        text = _text_of(path)
        try:
            config: Any = OmegaConf.load(StringIO(text))
            header = self._get_header_dict(text[:HEADER_CHARACTERS])
            precedence.edit(config_path, path, header["package"] == "_global_", config)
        except (yaml.YAMLError, RecursionError, ValueError, OSError) as error:
            raise _unreadable(path, error) from error
        return ConfigResult(self.provider, self.full_path(), config, header)

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
        folder, *below = name.split("/")
        is_recipe = folder in ("", "recipes")
        return ".." not in (folder, *below) and (self.provider != RECIPES or is_recipe)

    def _place(self, name: str) -> str:
        return os.path.join(self.path, name)


def _check_hidden(name: str, path: str) -> None:
    """Raise ConfigError C206 if the file that Hydra reads for ``name`` hides one of the user's."""
    if _users_folder is None:
        return
    hidden = os.path.join(_users_folder, name)
    if os.path.isfile(hidden) and not os.path.samefile(hidden, path):
        what = "has the name of a file of Paceline, which Hydra reads instead"
        raise ConfigError(206, hidden, what, "rename it")


def _text_of(path: str) -> str:
    """Read a YAML file without aliases, which can stand for any number of values in a few lines.

    ConfigError C114 for more than 64 KiB, C115 for what is no text, no YAML, or has an alias.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(MOST_BYTES + 1).decode("utf-8-sig")
        aliases = [e for e in yaml.parse(text, Loader=LOADER) if isinstance(e, yaml.AliasEvent)]
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        raise _unreadable(path, error) from error
    if len(text) > MOST_BYTES:
        fix = "no configuration needs that: keep data in files of their own"
        raise ConfigError(114, path, f"has more than {MOST_BYTES:,} bytes", fix)
    for alias in aliases:
        where = f"{path}, line {alias.start_mark.line + 1}"
        what = f"an alias, *{alias.anchor}"
        raise ConfigError(115, where, what, "write the value out, or refer to a key by ${...}")
    return text


def _unreadable(path: str, error: Exception) -> ConfigError:
    """Return the ConfigError C115 for what no YAML reader takes, in one line."""
    where = path
    problem: object = error
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        where = f"{path}, line {error.problem_mark.line + 1}"
        problem = error.problem or error
    elif isinstance(error, ReaderError):
        problem = error.reason
    elif isinstance(error, OSError):
        problem = error.strerror or error
    words = " ".join(str(problem).split())[:200] or type(error).__name__
    return ConfigError(115, where, f"not YAML that can be read ({words})", "correct the file")
