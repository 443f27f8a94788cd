"""What Hydra itself may be told by a file: docs/design/0012-guard.md."""

import re
from collections.abc import Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework.cli import precedence
from framework.cli.arguments import long_word
from framework.cli.config_source import endless
from framework.cli.reference_limit import count_references_anew, limit_references
from framework.cli.typed_blocks import drop_replaced
from framework.config.paths import is_below
from framework.errors import ConfigError

# The keys of Hydra that a file may set, and their values. What Hydra calls, imports, exports or
# hands to a cluster's shell comes from the command line.
BELOW = (
    r"(?!/)(?![\s\S]*\.\.)([^$\x00-\x1f]|\$\{(now|stamp|slug):[%\w:-]*\}|\$\{hydra\.job\.num\})+"
)
WORDS = r"[\w.:=\-\[\]', ]*"
FROM_FILES = {
    r"mode|job\.name": WORDS,
    r"job\.chdir": r"False",
    r"verbose|(job|hydra)_logging\.root\.level": r"\w+",
    r"run\.dir|sweep\.dir|sweep\.subdir": BELOW,
    r"sweeper\.params\.(?!.*hydra).*": r".*",
    r"sweeper\.(direction|max_batch_size|n_jobs|n_trials|study_name)(\.\d+)?": WORDS,
    r"launcher\.(array_parallelism|cpus_per_task|gpus_per_node|gres|mem_gb|nodes|partition"
    r"|tasks_per_node|timeout_min)": WORDS,
    r"launcher\.ray\.(init\.(include_dashboard|num_cpus)|remote\.(num_cpus|num_gpus))": WORDS,
}
# what Hydra says of the composition itself
OWN = ("overrides.", "runtime.", "job.config_name", "job.override_dirname")


class IsSweep(Exception):
    """A configuration that was composed for a single run asks for a sweep."""


class GuardedLoader(ConfigLoader):
    """Hydra's loader of configurations, with the rules of precedence and checks of the result.

    Launchers send it to other processes, so it can be pickled.

    Attributes:
        has_users_folder: Whether files may be read that are not ours.
        expects_run: Whether the next configuration is that of a single run. If it asks for a sweep,
            IsSweep is raised.
    """

    def __init__(self, loader: ConfigLoader, has_users_folder: bool) -> None:
        self._loader = loader
        self.has_users_folder = has_users_folder
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

        ConfigError C117 for endless defaults, C125 for what a file may not tell Hydra.
        """
        limit_references()
        count_references_anew()
        words = self.typed(overrides)
        expected = self._without_files(config_name, words) if self.has_users_folder else None
        precedence.begin(config_name, words, self.is_group)
        try:
            config = self._loader.load_configuration(
                config_name, words, run_mode, from_shell, validate_sweep_overrides
            )
        except RecursionError as error:
            raise endless() from error
        if expected is not None:
            _check_hydra(config, expected, words)
        if config_name is not None:
            drop_replaced(config, self, config_name, words)
        precedence.tell(precedence.notes())
        if self.expects_run:
            self.expects_run = False
            if config.hydra.mode == RunMode.MULTIRUN:
                raise IsSweep
        return config

    def _without_files(self, config_name: str | None, words: list[str]) -> dict[str, Any]:
        """Return Hydra's own keys as they are without files of others.

        Only the command line has words about Hydra: a run.json and the parameters of a file's sweep
        may have none.
        """
        precedence.begin(None, (), self.is_group)
        typed = [word for word in words if "hydra" in word.partition("=")[0]]
        config = self._loader.load_configuration(config_name, typed, RunMode.MULTIRUN)
        return _leaves(config)

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
        """Return the overrides as Hydra takes them.

        ConfigError C125 for a search path, which Hydra would read and import without our checks.
        """
        for word in words:
            if word.lstrip("+~").startswith("hydra.searchpath"):
                fix = "give the folder as --config-dir DIR"
                raise ConfigError(125, word, "would be read without any check", fix)
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
        words = self.typed(overrides or [])
        return self._loader.get_group_options(group_name, results_filter, config_name, words)

    def compute_defaults_list(
        self, config_name: str | None, overrides: list[str], run_mode: RunMode
    ) -> Any:
        return self._loader.compute_defaults_list(config_name, self.typed(overrides), run_mode)


def may_set(key: str, value: Any) -> bool:
    """Return whether a file may set a key of Hydra's to a value."""
    allowed = [values for name, values in FROM_FILES.items() if re.fullmatch(name, key)]
    if BELOW in allowed and not is_below(str(value).partition("${")[0] + "x"):
        return False
    return any(re.fullmatch(values, str(value)) for values in allowed)


def _leaves(config: DictConfig) -> dict[str, Any]:
    hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)
    return dict(precedence.leaves(hydra, ""))


def _check_hydra(config: DictConfig, expected: dict[str, Any], words: list[str]) -> None:
    """Compare Hydra's own keys with what they are without files. ConfigError C125."""
    given = _leaves(config)
    overrides = [*config.hydra.overrides.hydra, *config.hydra.overrides.task]
    if len(overrides) > len(words):
        given["overrides"] = overrides
    for key in sorted({*given, *expected}):
        value = given.get(key)
        if value != expected.get(key) and not key.startswith(OWN) and not may_set(key, value):
            what = f"set by a file to {str(value)[:80]}, which a file must not tell Hydra"
            fix = "remove it, or give it on the command line"
            raise ConfigError(125, f"hydra.{key}", what, fix)
