"""Hydra, and OmegaConf under it, made to look at what somebody sent before they read, follow or call it.

Hydra would parse a file of any size, follow names out of its folders, import packages of a search path, and call whatever callbacks, loggers
and launchers a file names, all before anything of ours runs.
"""

import math
import os
import re
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import yaml
from hydra._internal.config_loader_impl import ConfigLoaderImpl  # pyright: ignore[reportPrivateUsage]
from hydra._internal.config_repository import CachingConfigRepository  # pyright: ignore[reportPrivateUsage]
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError

from framework.cli import precedence
from framework.cli.paths import CONF
from framework.cli.yaml_limits import MOST_NODES, check_yaml, too_much, unreadable
from framework.errors import ConfigError

MOST_ENTRIES = (
    2000  # of defaults lists, followed; ours are about 30, and each is asked for a few times
)
MOST_REFERENCES = 1000
MOST_CHARACTERS = 1 << 20
MOST_JOBS = 10_000
PACKAGES = (
    "hydra.conf",
    "hydra_plugins.",
)  # that hold configurations; a package is imported before it is looked into
HARMLESS = re.compile(r"\$\{(now|stamp|slug):[^${}/]*\}")
BASIC = "hydra._internal.core_plugins.basic_"


class _Spent:
    """By the present composition: entries of defaults lists, the newest last; nodes of files; references, and the characters they gave."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self.nodes = self.references = self.characters = 0

    @property
    def chain(self) -> str:
        """The newest entries, each once: where they turn in a circle, the circle."""
        return " -> ".join(list(dict.fromkeys(self.entries[:-9:-1]))[::-1])


_spent = _Spent()


def guard_hydra() -> None:
    """From here on. May be said again."""
    plugins = (
        Plugins.instance().class_name_to_class
    )  # those that Hydra calls: it makes them anew when it looks for plugins
    core = "hydra._internal.core_plugins"
    _guard(plugins[f"{core}.file_config_source.FileConfigSource"], "load_config", _load_checked)
    _guard(
        plugins[f"{core}.importlib_resources_config_source.ImportlibResourcesConfigSource"],
        "__init__",
        _open_known_package,
    )
    _guard(plugins[f"{core}.basic_sweeper.BasicSweeper"], "split_arguments", _split_counted)
    _guard(CachingConfigRepository, "load_config", _find_counted)
    _guard(CachingConfigRepository, "__init__", _begin_counting)
    _guard(ConfigLoaderImpl, "load_configuration", _compose_checked)
    _guard(Container, "_resolve_node_interpolation", _reference_counted)
    _guard(Container, "_evaluate_custom_resolver", _reference_counted)
    _guard(Container, "resolve_parse_tree", _text_counted)


def _guard(owner: type, name: str, around: Callable[..., Any]) -> None:
    """A method becomes ``around``, which is handed the method first."""
    method = getattr(owner, name)
    if getattr(method, "around", None) is around:
        return

    @wraps(method)
    def guarded(*arguments: Any, **options: Any) -> Any:
        return around(method, *arguments, **options)

    guarded.__dict__["around"] = around
    setattr(
        owner,
        name,
        staticmethod(guarded) if isinstance(owner.__dict__[name], staticmethod) else guarded,
    )


def count_references_anew() -> None:
    """Before a configuration is resolved as a whole."""
    _spent.references = _spent.characters = 0


# ------------------------------------------------------------------------------------------------------------------------- files


def _load_checked(load: Callable[..., Any], self: Any, config_path: str) -> Any:
    """ConfigError C114, C115 for the file, C117 for a name that leads out of the folder it is looked for in."""
    path = os.path.normpath(os.path.join(self.path, self._normalize_file_name(config_path)))
    if not path.startswith(os.path.join(os.path.normpath(self.path), "")):
        raise ConfigError(
            117,
            config_path,
            "leads out of the folders of configurations",
            "give a name inside them",
        )
    if os.path.exists(path):
        _spent.nodes += check_yaml(path)
    if _spent.nodes > MOST_NODES:
        raise too_much(
            path, f"makes more than {MOST_NODES:,} values, with the files read before it"
        )
    try:
        result = load(self, config_path)
        precedence.edit(
            config_path, path, result.header.get("package") == "_global_", result.config
        )
        return result
    except (yaml.YAMLError, RecursionError, ValueError, OSError) as error:
        raise unreadable(path, error) from error


def _begin_counting(begin: Callable[..., Any], *arguments: Any) -> None:
    global _spent  # noqa: PLW0603
    _spent = _Spent()
    begin(*arguments)


def _find_counted(find: Callable[..., Any], self: CachingConfigRepository, config_path: str) -> Any:
    _spent.entries.append(config_path)
    if len(_spent.entries) > MOST_ENTRIES:
        raise _endless()
    return find(self, config_path)


def _endless() -> ConfigError:
    what = "lists of defaults that lead back to themselves, or are far too long"
    return ConfigError(117, _spent.chain, what, "take the entry out that leads back")


def _open_known_package(begin: Callable[..., Any], self: Any, provider: str, path: str) -> None:
    name = path.removeprefix("pkg://").replace("/", ".")
    if not f"{name}.".startswith(tuple(f"{package.rstrip('.')}." for package in PACKAGES)):
        what = "would import a package that no list checks"
        raise ConfigError(
            125,
            f"hydra.searchpath = {path}",
            what,
            "give a folder: file://DIR, or --config-dir DIR",
        )
    begin(self, provider, path)


# ------------------------------------------------------------------------------------------------------------------ what is composed


def _compose_checked(
    compose: Callable[..., DictConfig],
    self: Any,
    config_name: str | None,
    overrides: list[str],
    *arguments: Any,
    **options: Any,
) -> DictConfig:
    """ConfigError C125 for what Hydra would do with the result."""
    is_group = self.repository.group_exists
    words = precedence.without_null(overrides, is_group)
    precedence.begin(config_name, words, is_group)
    try:
        config = compose(self, config_name, words, *arguments, **options)
    except RecursionError as error:
        raise _endless() from error
    hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)
    if sum(map(len, hydra["overrides"].values())) > len(words):
        raise _refused("overrides", "set by a configuration file, as if they had been typed")
    _check_calls(hydra)
    _check_loggers(hydra)
    _check_places(hydra, _ours(config_name), {word.lstrip("+").split("=")[0] for word in words})
    precedence.tell(precedence.notes())
    return config


@cache
def _ours(config_name: str | None) -> Any:
    path = CONF / f"{config_name}.yaml"
    ours = OmegaConf.to_container(OmegaConf.load(path)) if path.is_file() else {}
    return ours.get("hydra", {}) if isinstance(ours, dict) else {}


def _value(node: Any, key: str) -> Any:
    """What stands there; None where nothing does. ConfigError C125 for a reference on the way, which could lead to anything."""
    for part in key.split("."):
        if not isinstance(node, dict | None):
            raise _refused(key, "must be written out, not referred to")
        node = (node or {}).get(part)
    return node


def _refused(key: str, what: str, fix: str = "remove it") -> ConfigError:
    return ConfigError(125, f"hydra.{key}", what, fix)


def _check_calls(hydra: dict[str, Any]) -> None:
    if _value(hydra, "callbacks"):
        raise _refused("callbacks", "Hydra would call them without any check")
    for key in ("job.env_set", "job.env_copy"):
        if _value(hydra, key):
            raise _refused(key, "programs that are started would obey it", "export it before")
    if _value(hydra, "output_subdir") is not None:
        raise _refused("output_subdir", "the configuration stands in the run directory already")


def _check_loggers(hydra: dict[str, Any]) -> None:
    """Streams only: a handler's class is called, a file's handler writes wherever its name says, and ``ext://`` imports."""
    for key in ("job_logging", "hydra_logging"):
        block = _value(hydra, key)
        texts = [text for text in _texts(block) if "ext://" in text or "${" in text]
        if foreign := sorted(set(texts) - {"ext://sys.stdout", "ext://sys.stderr"}):
            raise _refused(key, f"would be led to {foreign[0]}")
        for part in ("handlers", "formatters", "filters"):
            for name, given in (_value(block, part) or {}).items():
                kinds = {
                    str(_value(given, "class") or "logging.StreamHandler"),
                    *({"()", "."} & set(given or ())),
                }
                if kinds != {"logging.StreamHandler"}:
                    raise _refused(f"{key}.{part}.{name}", "Hydra would call it without any check")


def _texts(node: Any) -> list[str]:
    if isinstance(node, dict | list):
        return [
            text
            for inner in (node.values() if isinstance(node, dict) else node)
            for text in _texts(inner)
        ]
    return [node] if isinstance(node, str) else []


def _check_places(hydra: dict[str, Any], ours: dict[str, Any], typed: set[str]) -> None:
    """A file may say where a run goes, below the present directory; and who starts it, only the command line."""
    for key in ("run.dir", "sweep.dir", "sweep.subdir"):
        if (
            f"hydra.{key}" not in typed
            and _value(hydra, key) != _value(ours, key)
            and not _stays_below(str(_value(hydra, key)))
        ):
            what = "set by a configuration file, which may not lead out of this directory"
            raise _refused(key, what, "give it on the command line")
    subdir = str(_value(hydra, "sweep.subdir"))
    if os.path.isabs(subdir) or ".." in subdir.split("/"):
        raise _refused(
            "sweep.subdir", "leads out of the sweep's directory", "give a name inside it"
        )
    for key in ("launcher", "sweeper"):
        target = str(_value(hydra, f"{key}._target_"))
        if not target.startswith(BASIC) and f"hydra/{key}" not in typed:
            raise _refused(
                key,
                "set by a configuration file, which must not choose it",
                f"give hydra/{key}= on the command line",
            )


def _stays_below(path: str) -> bool:
    """Whether a path is relative and leads down, whatever the date and the like in it are; of other references nobody knows."""
    path = HARMLESS.sub("x", path)
    return "${" not in path and not os.path.isabs(path) and ".." not in path.split("/")


# -------------------------------------------------------------------------------------------------------------------- references


def _reference_counted(follow: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A reference to ten others, ten levels deep, would take for ever."""
    _spent.references += 1
    if _spent.references > MOST_REFERENCES:
        raise InterpolationResolutionError(f"expands to more than {MOST_REFERENCES:,} references")
    return follow(*arguments, **options)


def _text_counted(resolve: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """A long text, put together again and again, would fill any memory."""
    found = resolve(*arguments, **options)
    _spent.characters += len(found) if isinstance(found, str) else 0
    if _spent.characters > MOST_CHARACTERS:
        raise InterpolationResolutionError(f"expands to more than {MOST_CHARACTERS:,} characters")
    return found


# ------------------------------------------------------------------------------------------------------------------------ sweeps


def _split_counted(
    split: Callable[..., Any], overrides: list[Override], max_batch_size: int | None
) -> Any:
    check_jobs(overrides)
    return split(overrides, max_batch_size)


def check_jobs(overrides: Sequence[Override]) -> None:
    """ConfigError C129 for a sweep whose jobs would not even fit into memory as a list."""
    jobs = math.prod(map(_num_values, overrides))
    if jobs > MOST_JOBS:
        raise ConfigError(
            129,
            "sweep",
            f"makes {jobs:,} jobs, more than {MOST_JOBS:,}",
            "sweep fewer values at a time",
        )


def _num_values(override: Override) -> int:
    found: Any = override.value()
    if isinstance(found, ChoiceSweep):
        return max(1, len(found.list))
    if not isinstance(found, RangeSweep):
        return 1
    start, stop, step = (float(number or 0) for number in (found.start, found.stop, found.step))
    return (
        max(1, math.ceil((stop - start) / step))
        if step and math.isfinite(stop - start)
        else MOST_JOBS + 1
    )
