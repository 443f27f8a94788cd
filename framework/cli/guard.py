"""Checks of what Hydra would import, call or follow, before it does: docs/design/0012-guard.md."""

import math
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Override, RangeSweep
from hydra.plugins.config_source import ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework.cli import precedence
from framework.cli.arguments import long_word, quoted
from framework.cli.config_source import begin_composition, checked_places, endless
from framework.cli.reference_limit import count_references_anew, limit_references
from framework.cli.typed_blocks import drop_replaced
from framework.config.paths import CONF
from framework.config.targets import walk
from framework.errors import ConfigError

MOST_JOBS = 10_000
# References in a path that cannot lead out of a folder.
HARMLESS = re.compile(r"\$\{(now|stamp|slug):[^${}/]*\}")
BASIC = "hydra._internal.core_plugins.basic_"
STREAM = "logging.StreamHandler"
STREAMS = ("ext://sys.stdout", "ext://sys.stderr")


class IsSweep(Exception):
    """A configuration that was composed for a single run asks for a sweep."""


class GuardedLoader(ConfigLoader):
    """Hydra's loader of configurations, with the rules of precedence and checks of the result.

    Launchers send it to other processes, so it can be pickled.

    Attributes:
        expects_run: Whether the next configuration is that of a single run. If it asks for a sweep,
            IsSweep is raised.
    """

    def __init__(self, loader: ConfigLoader) -> None:
        self._loader = loader
        self.expects_run = False

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Compose.

        ConfigError C117 for endless defaults, C125 for what Hydra would call or follow.
        """
        limit_references()
        count_references_anew()
        begin_composition()
        words = self.typed(overrides)
        precedence.begin(config_name, words, self.is_group)
        try:
            config = self._loader.load_configuration(
                config_name,
                _with_checked_places(words),
                run_mode,
                from_shell,
                validate_sweep_overrides,
            )
        except RecursionError as error:
            raise endless() from error
        if config_name is not None:
            drop_replaced(config, self, config_name, words)
        hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)
        _check_composed(hydra, config_name, words)
        if run_mode == RunMode.MULTIRUN and config.hydra.mode == RunMode.MULTIRUN:
            _check_sweep(hydra)
        precedence.tell(precedence.notes())
        if self.expects_run:
            self.expects_run = False
            if config.hydra.mode == RunMode.MULTIRUN:
                raise IsSweep
        return config

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        words = [*master_config.hydra.overrides.hydra, *sweep_overrides]
        name = master_config.hydra.job.config_name
        config = self.load_configuration(name, words, RunMode.RUN)
        # The time of the sweep is the time of its jobs.
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        return config

    def typed(self, words: Sequence[str]) -> list[str]:
        """Return the overrides as Hydra takes them."""
        return precedence.without_null([long_word(word) for word in words], self.is_group)

    def is_group(self, name: str) -> bool:
        """Return whether ``name`` is a group of choices."""
        return any(source.is_group(name) for source in self.get_sources())

    def get_search_path(self) -> ConfigSearchPath:
        return self._loader.get_search_path()

    def get_sources(self) -> list[ConfigSource]:
        return self._loader.get_sources()

    def list_groups(self, parent_name: str) -> list[str]:
        return self._loader.list_groups(parent_name)

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        words = _with_checked_places(overrides or [])
        return self._loader.get_group_options(group_name, results_filter, config_name, words)

    def compute_defaults_list(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode
    ) -> Any:
        begin_composition()
        words = _with_checked_places(overrides)
        return self._loader.compute_defaults_list(config_name, words, run_mode)


def _with_checked_places(words: Sequence[str]) -> list[str]:
    """Return the words with a ``hydra.searchpath`` whose folders are checked when they are read."""
    if not any("searchpath" in word for word in words):
        return list(words)
    checked: list[str] = []
    for override in OverridesParser.create().parse_overrides(list(words)):
        word = str(override.input_line)
        if override.get_key_element() == "hydra.searchpath":
            places: Any = override.value()
            if isinstance(places, list) and all(isinstance(place, str) for place in places):
                word = f"hydra.searchpath=[{','.join(map(quoted, checked_places(places)))}]"
        checked.append(word)
    return checked


def _check_composed(hydra: dict[str, Any], config_name: str | None, words: list[str]) -> None:
    if sum(map(len, hydra["overrides"].values())) > len(words):
        raise _refused("overrides", "set by a configuration file, as if they had been typed")
    _check_calls(hydra)
    _check_loggers(hydra)
    _check_places(hydra, _ours(config_name), {word.lstrip("+").split("=")[0] for word in words})
    for source in hydra["runtime"]["config_sources"]:
        if source["schema"] == "file":
            raise _refused("searchpath", f"{source['path']} is read without a check")


@cache
def _ours(config_name: str | None) -> Any:
    """Return the ``hydra`` block of our own file of that name."""
    path = CONF / f"{config_name}.yaml"
    if not path.is_file():
        return {}
    ours: Any = OmegaConf.to_container(OmegaConf.load(path))
    return ours.get("hydra", {})


def _value(node: Any, key: str) -> Any:
    """Return the value of a dotted key, or None.

    ConfigError C125 for a reference on the way, which could lead to anything.
    """
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
    """Allow streams only.

    Hydra calls a handler's class, ``ext://`` imports, and a file handler writes anywhere.
    """
    for key in ("job_logging", "hydra_logging"):
        block = _value(hydra, key)
        for _, text in walk(block):
            leads_away = isinstance(text, str) and ("ext://" in text or "${" in text)
            if leads_away and text not in STREAMS:
                raise _refused(key, f"would be led to {text}")
        for part in ("handlers", "formatters", "filters"):
            for name, given in (_value(block, part) or {}).items():
                makes = {"()", "."} & set(given or ())
                if makes or str(_value(given, "class") or STREAM) != STREAM:
                    raise _refused(f"{key}.{part}.{name}", "Hydra would call it without any check")


def _check_places(hydra: dict[str, Any], ours: Mapping[str, Any], typed: set[str]) -> None:
    """Let a file send a run below the present directory only, and not choose who starts it."""
    for key in ("run.dir", "sweep.dir", "sweep.subdir"):
        place = _value(hydra, key)
        if f"hydra.{key}" in typed or place == _value(ours, key):
            continue
        if not _stays_below(str(place)):
            what = "set by a configuration file, which may not lead out of this directory"
            raise _refused(key, what, "give it on the command line")
    subdir = str(_value(hydra, "sweep.subdir"))
    if os.path.isabs(subdir) or ".." in subdir.split("/"):
        what = "leads out of the sweep's directory"
        raise _refused("sweep.subdir", what, "give a name inside it")
    for key in ("launcher", "sweeper"):
        target = str(_value(hydra, f"{key}._target_"))
        if not target.startswith(BASIC) and f"hydra/{key}" not in typed:
            what = "set by a configuration file, which must not choose it"
            raise _refused(key, what, f"give hydra/{key}= on the command line")


def _stays_below(path: str) -> bool:
    """Return whether a path is relative and leads down, whatever its references stand for."""
    path = HARMLESS.sub("x", path)
    return "${" not in path and not os.path.isabs(path) and ".." not in path.split("/")


def _check_sweep(hydra: dict[str, Any]) -> None:
    """Count the jobs of Hydra's own sweeper, which lists them all before the first."""
    if not str(_value(hydra, "sweeper._target_")).startswith(BASIC):
        return
    params = _value(hydra, "sweeper.params") or {}
    words = [f"{key}={value}" for key, value in params.items()]
    parsed = OverridesParser.create().parse_overrides([*words, *hydra["overrides"]["task"]])
    # A typed word replaces the file's word for the same key.
    check_jobs(list({override.get_key_element(): override for override in parsed}.values()))


def check_jobs(overrides: Sequence[Override]) -> None:
    """Check the size of a sweep. ConfigError C129 for jobs that would not fit into memory."""
    jobs = math.prod(map(_num_values, overrides))
    if jobs > MOST_JOBS:
        what = f"makes {jobs:,} jobs, more than {MOST_JOBS:,}"
        raise ConfigError(129, "sweep", what, "sweep fewer values at a time")


def _num_values(override: Override) -> int:
    values: Any = override.value()
    if isinstance(values, ChoiceSweep):
        return max(1, len(values.list))
    if not isinstance(values, RangeSweep):
        return 1
    start, stop, step = (float(number or 0) for number in (values.start, values.stop, values.step))
    if not step or not math.isfinite(stop - start):
        return MOST_JOBS + 1
    return max(1, math.ceil((stop - start) / step))
