"""Hydra with our folders and resolvers, and what files may tell it: docs/design/0012-guard.md."""

import os
import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from io import StringIO
from typing import TYPE_CHECKING, Any, ClassVar

import yaml
from hydra import __version__ as hydra_version
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.default_element import ResultDefault
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import RunMode
from omegaconf import Container, DictConfig, ListConfig, Node, OmegaConf
from omegaconf.basecontainer import BaseContainer
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from omegaconf.resolvers import oc

from framework.cli import arguments, outcome, precedence
from framework.cli.devices_launcher import DevicesLauncher
from framework.config.targets import CONF, ROOT
from framework.errors import ConfigError
from framework.system.run_dir import check_sweep, is_below, note, redacted

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

IS_13 = hydra_version.startswith("1.3.")
# OmegaConf 2.4, which comes with Hydra 1.4, has another name for it.
REGISTER: Any = getattr(OmegaConf, "register_new_resolver" if IS_13 else "register_resolver")
SCHEME = "paceline"
RECIPES = "paceline"  # the provider of our recipes
OWN_CHOICES, OWN_RECIPES = "project", "project-recipes"  # those of the present folder's files
MOST_BYTES = 64 << 10  # Hydra reads a file of this size, twice, in less than a second
HEADER_CHARACTERS = 512  # as many as Hydra searches for "# @package"
# libyaml is 20 times as fast, but not every installation has it.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The keys of Hydra that a file may set, and their values. What Hydra calls, imports, exports or
# hands to a cluster's shell comes from the command line.
BELOW = (
    r"(?!/)(?![\s\S]*\.\.)([^$\x00-\x1f]"
    r"|\$\{(now|stamp|slug):(%[FHMSTYdfjmy]|[\w:-])*\}|\$\{hydra\.job\.num\})+"
)
WORDS = r"[\w.:=\-\[\]', ]*"
FROM_FILES = {
    r"mode|job\.name": WORDS,
    r"job\.chdir": r"False",
    r"verbose|(job|hydra)_logging\.root\.level": r"\w+",
    r"(run|sweep)\.dir": BELOW,
    r"sweep\.subdir": rf"(?![\s\S]*/){BELOW}",  # ``check_sweep`` looks at one level
    r"sweeper\.params\.(?!.*hydra).*": r".*",
    r"sweeper\.(direction|max_batch_size|n_jobs|n_trials|study_name)(\.\d+)?": WORDS,
    r"launcher\.(array_parallelism|cores|cpus_per_task|gpus|gpus_per_node|gres|jobs|mem_gb|nodes"
    r"|partition|tasks_per_node|timeout_min)": WORDS,
    r"launcher\.ray\.(init\.(include_dashboard|num_cpus)|remote\.(num_cpus|num_gpus))": WORDS,
}
OWN_LAUNCHER = f"{DevicesLauncher.__module__}.{DevicesLauncher.__name__}"
OWN = ("overrides.", "runtime.", "job.config_name", "job.override_dirname")  # of the composition
# OmegaConf has no limit on what it resolves, and ten lines of YAML can ask for a terabyte.
MOST = {"references": 1000, "characters": 1 << 20, "blocks": 20_000}
RESOLVE = Container.resolve_parse_tree
# OmegaConf 2.4 follows a reference once, and copies the block that it leads to as often as before.
CONTENT: Any = vars(BaseContainer)["_to_content"]
_REFERENCE = re.compile(r"\$\{oc\.env:\s*([^,}\s]+)")

_read: list[str] = []  # what the present composition has read, the newest last
_is_written = False  # whether references to the environment stay as they are
_resolved = dict.fromkeys(MOST, 0)  # since a configuration was begun

stamp = cache(outcome.time_stamp)  # of this command


class SearchFolders(SearchPathPlugin):
    """Hydra's plugin that adds the folder of the recipes, the project's folders, and the user's."""

    config_dir: ClassVar[str | None] = None

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append(RECIPES, str(ROOT))
        if (project := project_folder()) is not None:
            search_path.append(OWN_CHOICES, os.path.join(project, "conf"))
            search_path.append(OWN_RECIPES, project)
        if self.config_dir is not None:
            search_path.append("command-line", os.path.abspath(self.config_dir))
        for element in search_path.get_path():
            if "://" not in element.path or element.path.startswith("file://"):
                element.path = f"{SCHEME}://{element.path.removeprefix('file://')}"


def project_folder() -> str | None:
    """Return the present folder if it has configurations of a project.

    Those of a checkout of Paceline are ours, also if another copy of it runs.
    """
    folder = os.getcwd()
    is_ours = os.path.isfile("conf/train.yaml") and os.path.isfile("framework/main.py")
    has_files = os.path.isdir("conf") or os.path.isdir("recipes")
    if not has_files or is_ours or os.path.samefile(folder, ROOT):
        return None
    return folder


def own_folders(group: str, config_dir: str | None) -> list[str]:
    """Return the folders in which the user's choices of a group may be.

    With ``""``, these are the folders of configurations that belong to no group.
    """
    folders: list[str] = []
    if group and (project := project_folder()) is not None:
        if group == "recipes":
            folders.append(os.path.join(project, group))
        elif (CONF / group).is_dir():
            folders.append(os.path.join(project, "conf", group))
    if config_dir is not None:
        folders.append(os.path.join(config_dir, group))
    return folders


@contextmanager
def hydra_session(command: str, config_dir: str | None = None) -> Generator["Hydra"]:
    """Start Hydra for a command and the user's folder; ``hydra.compose`` works inside."""
    plugins = Plugins.instance()
    own = {SearchFolders: SearchPathPlugin, CheckedFolder: ConfigSource, DevicesLauncher: Launcher}
    for plugin, kind in own.items():
        if plugin not in plugins.discover(kind):
            plugins.register(plugin)
    # Before 1.4 Hydra makes only its own objects, and those of the package hydra_plugins.
    if IS_13:
        is_theirs = Plugins.is_in_toplevel_plugins_module
        plugins.is_in_toplevel_plugins_module = lambda clazz: (
            clazz == OWN_LAUNCHER or is_theirs(clazz)
        )
    stamp.cache_clear()
    # The value is fixed now, for the processes to which a launcher sends the resolver.
    now = stamp()
    REGISTER("stamp", lambda: now, replace=True)
    REGISTER("slug", _slug, replace=True)
    _guard_environment()
    SearchFolders.config_dir = config_dir
    GlobalHydra.instance().clear()
    # Later versions have only the behavior that 1.3 has by this option, and warn of it.
    base: dict[str, Any] = {"version_base": "1.3"} if IS_13 else {}
    with initialize_config_dir(str(CONF), job_name=command, **base):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        loader = GuardedLoader(hydra.config_loader.get_search_path())
        loader.has_users_folder = config_dir is not None or project_folder() is not None
        hydra.config_loader = loader
        yield hydra


def _slug(text: Any) -> str:
    """Return a text, or words, as part of a directory's name: harmless letters, at most 120."""
    if isinstance(text, ListConfig):
        words: Any = OmegaConf.to_container(text, resolve=False)
        text = ",".join(sorted(words))
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)[:120]


def _guard_environment() -> None:
    REGISTER("oc.env", _read_environment, replace=True)
    REGISTER("oc.decode", _decode, replace=True)


def _read_environment(key: str, *default: Any) -> Any:
    """Resolve ``${oc.env:NAME}``, and keep the value out of the files of runs."""
    if _is_written and key in os.environ:
        return f"${{oc.env:{key}}}"
    note([key])
    return oc.env(key, *default)


def _decode(text: Any, _parent_: Any, _node_: Node) -> Any:
    """Resolve ``${oc.decode:...}``. No block comes from the environment: its keys name files."""
    if _is_written and _REFERENCE.search(str(text)):
        return f"${{oc.decode:{text}}}"
    value = oc.decode(text, _parent_, _node_)
    if isinstance(value, dict | DictConfig) and redacted(text) != text:
        raise ValueError(f"{redacted(text)} is a block, whose keys would be in files; write it out")
    return value


def as_written(config: DictConfig) -> dict[str, Any]:
    """Return plain values with every reference resolved, except those to the environment."""
    global _is_written  # noqa: PLW0603  # resolvers get no argument of ours

    def plain(node: Any) -> Any:
        if not isinstance(node, DictConfig | ListConfig):
            return node
        values: Any = OmegaConf.to_container(node, resolve=False)
        for key in list(node) if isinstance(node, DictConfig) else range(len(node)):
            # what cannot be resolved, since its own text needs the environment, stays as it is
            with suppress(OmegaConfBaseException, RecursionError):
                values[key] = plain(node[key])
        if isinstance(node, ListConfig):
            return values
        return {str(key): value for key, value in values.items()}

    _guard_environment()
    _is_written = True
    try:
        return plain(config)
    finally:
        _is_written = False


def resolved(config: DictConfig) -> dict[str, Any]:
    """Return plain values. ConfigError C103 (one is missing), C104 (a reference leads nowhere)."""
    _reset_reference_counts()
    try:
        if missing := sorted(OmegaConf.missing_keys(config)):
            fix = f"add {' '.join(f'{key}=...' for key in missing)}"
            raise ConfigError(103, ", ".join(missing), "must be given", fix)
        plain: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        where = error.full_key or "config"
        what = " ".join(str(error.msg or error).split())
        raise ConfigError(104, where, what, "correct the interpolation") from error
    except RecursionError as error:
        what = "references to references without end"
        raise ConfigError(104, "config", what, "name the last of them") from error
    return {str(key): value for key, value in plain.items()}


class CheckedFolder(ConfigSource):
    """Hydra's plugin for the folder of ``paceline://FOLDER``."""

    @staticmethod
    def scheme() -> str:
        return SCHEME

    def load_config(self, config_path: str) -> ConfigResult:
        """Read one file, without the default recipe if the words name data.

        ConfigError C114 (more than 64 KiB), C115 (no YAML, or an alias), C117 (a name outside the
        folder), C206 (a file of the user's has the same name).
        """
        file_name = self._normalize_file_name(config_path)
        path = os.path.normpath(os.path.join(self.path, file_name))
        inside = path.startswith(os.path.join(os.path.normpath(self.path), ""))
        if not inside or not self._is_offered(config_path):
            what = "leads out of the folders of configurations"
            raise ConfigError(117, config_path, what, "give a name inside them")
        if not os.path.exists(path):
            raise ConfigLoadError(f"Config not found : {path}")
        group = file_name.split("/")[0] if "/" in file_name else ""
        for folder in own_folders(group, SearchFolders.config_dir):
            other = os.path.join(folder, file_name.removeprefix(f"{group}/"))
            if os.path.isfile(other) and not os.path.samefile(other, path):
                what = f"has the same name as {precedence.shown_path(path)}"
                raise ConfigError(206, precedence.shown_path(other), what, "rename one of them")
        _read.append(config_path)
        try:
            with open(path, "rb") as file:
                text = file.read(MOST_BYTES + 1).decode("utf-8-sig")
            for event in yaml.parse(text, Loader=LOADER):
                if isinstance(event, yaml.AliasEvent):  # it may stand for any number of values
                    where = f"{path}, line {event.start_mark.line + 1}"
                    fix = "write the value out, or refer to a key by ${...}"
                    raise ConfigError(115, where, f"an alias, *{event.anchor}", fix)
            if len(text) > MOST_BYTES:
                fix = "no configuration needs that: keep data in files of their own"
                raise ConfigError(114, path, f"has more than {MOST_BYTES:,} bytes", fix)
            config: Any = OmegaConf.load(StringIO(text))
            header = self._get_header_dict(text[:HEADER_CHARACTERS])
            if config_path == precedence.TRAIN and precedence.last().without_recipe is not None:
                for entry in config.get("defaults") or ():
                    if isinstance(entry, DictConfig) and "recipes" in entry:
                        entry["recipes"] = None
        except (yaml.YAMLError, RecursionError, ValueError, OSError) as error:
            mark = getattr(error, "problem_mark", None)
            where = f"{path}, line {mark.line + 1}" if mark else path
            problem = (getattr(error, name, None) for name in ("problem", "strerror"))
            words = " ".join(str(next(filter(None, problem), error)).split())[:200]
            what = f"not YAML that can be read ({words or type(error).__name__})"
            raise ConfigError(115, where, what, "correct the file") from error
        return ConfigResult(self.provider, self.full_path(), config, header)

    def available(self) -> bool:
        return self.is_group("")

    def is_group(self, config_path: str) -> bool:
        return self._is_offered(config_path) and os.path.isdir(os.path.join(self.path, config_path))

    def is_config(self, config_path: str) -> bool:
        path = os.path.join(self.path, self._normalize_file_name(config_path))
        is_choice = "/" in config_path or self.provider not in (OWN_CHOICES, OWN_RECIPES)
        return is_choice and self._is_offered(config_path) and os.path.isfile(path)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        names: list[str] = []
        for name in os.listdir(os.path.join(self.path, config_path)):
            self._list_add_result(names, os.path.join(config_path, name), name, results_filter)
        return sorted(set(names))

    def _is_offered(self, name: str) -> bool:
        """Return whether configurations may lie at ``name``: other files lie beside recipes.

        Of the present folder, which may be somebody else's, only choices of our groups count.
        """
        folder, *below = name.split("/")
        if ".." in (folder, *below):
            return False
        if self.provider in (RECIPES, OWN_RECIPES):
            return folder in ("", "recipes")
        is_ours = folder != "hydra" and (CONF / folder).is_dir()
        return self.provider != OWN_CHOICES or is_ours


def _reset_reference_counts() -> None:
    Container.resolve_parse_tree = _limited
    setattr(BaseContainer, "_to_content", staticmethod(_limited_content))  # noqa: B010
    _resolved.update(dict.fromkeys(MOST, 0))


def _limited(self: Container, parse_tree: Any, node: Any, *more: Any, **options: Any) -> Any:
    _count("references", 1)
    value = RESOLVE(self, parse_tree, node, *more, **options)
    # The text counts too: it may hold thousands of references that resolve to nothing.
    texts = [text for text in (node._value(), value) if isinstance(text, str)]  # noqa: SLF001
    _count("characters", sum(map(len, texts)))
    return value


def _limited_content(conf: Container, *more: Any, **options: Any) -> Any:
    _count("blocks", 1)
    return CONTENT(conf, *more, **options)


def _count(kind: str, more: int) -> None:
    _resolved[kind] += more
    if _resolved[kind] > MOST[kind]:
        raise InterpolationResolutionError(f"expands to more than {MOST[kind]:,} {kind}")


class IsSweep(Exception):
    """A configuration that was composed for a single run asks for a sweep."""


class GuardedLoader(ConfigLoaderImpl):
    """Hydra's loader, with our rules of precedence and checks. Launchers pickle it."""

    has_users_folder = False  # whether files may be read that are not ours
    is_checking = False  # whether ``load_configuration`` runs
    expects_run = False  # whether to raise IsSweep if the next configuration asks for a sweep

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        """Compose. ConfigError C117 for endless defaults, C125 for what no file may tell Hydra."""
        self.is_checking = True
        options = (run_mode, from_shell, validate_sweep_overrides)
        try:
            return self._checked(config_name, overrides, *options)
        finally:
            self.is_checking = False

    def _load_configuration(self, **options: Any) -> DictConfig:
        """Load as Hydra 1.4 does, which calls this instead of the public method."""
        if self.is_checking:
            return super()._load_configuration(**options)  # pyright: ignore[reportAttributeAccessIssue]
        names = ("config_name", "overrides", "run_mode", "from_shell", "validate_sweep_overrides")
        return self.load_configuration(*(options[name] for name in names))

    def _checked(self, config_name: str | None, overrides: list[str], *options: Any) -> DictConfig:
        _reset_reference_counts()
        words = self.typed(overrides)
        expected: dict[str, Any] = {}
        if self.has_users_folder:
            # Hydra's own keys as they are without files of others. Only the command line has words
            # about Hydra: a run.json and the parameters of a file's sweep may have none.
            precedence.begin(None, (), self.is_group)
            own = [word for word in words if "hydra" in word.partition("=")[0]]
            expected = _leaves(super().load_configuration(config_name, own, RunMode.MULTIRUN))
        composition = precedence.begin(config_name, words, self.is_group)
        try:
            config = super().load_configuration(config_name, words, *options)
        except RecursionError as error:
            what = "lists of defaults that lead back to themselves"
            fix = "take the entry out that leads back"
            raise ConfigError(117, " -> ".join(_read[-3:]), what, fix) from error
        if self.has_users_folder:
            given = _leaves(config)
            typed = [*config.hydra.overrides.hydra, *config.hydra.overrides.task]
            if len(typed) > len(words):
                given["overrides"] = typed
            for key in sorted({*given, *expected}):
                value = given.get(key)
                if value == expected.get(key) or key.startswith(OWN):
                    continue
                # what a reference stands for may be the name of a link
                leads_out = key in ("run.dir", "sweep.dir") and not is_below(
                    f"{OmegaConf.select(config.hydra, key)}"
                )
                if leads_out or not may_set(key, value):
                    what = f"set by a file to {str(value)[:80]}, which a file must not tell Hydra"
                    fix = "remove it, or give it on the command line"
                    raise ConfigError(125, f"hydra.{key}", what, fix)
        if options[0] == RunMode.MULTIRUN:
            check_sweep(config.hydra.sweep.dir)
        precedence.note_once(composition.notes)
        if self.expects_run:
            self.expects_run = False
            if config.hydra.mode == RunMode.MULTIRUN:
                raise IsSweep
        return config

    def load_sweep_config(
        self, master_config: DictConfig, sweep_overrides: list[str]
    ) -> DictConfig:
        words = [*master_config.hydra.overrides.hydra, *sweep_overrides]
        config = self.load_configuration(master_config.hydra.job.config_name, words, RunMode.RUN)
        # The time of the sweep is the time of its jobs.
        OmegaConf.copy_cache(from_config=master_config, to_config=config)
        return config

    def typed(self, words: Sequence[str]) -> list[str]:
        """Return overrides as Hydra takes them. ConfigError C125: a path is read unchecked."""
        for word in words:
            if word.lstrip("+~").startswith("hydra.searchpath"):
                fix = "give the folder as --config-dir DIR"
                raise ConfigError(125, word, "would be read without any check", fix)
        return precedence.without_null(map(arguments.long_word, words), self.is_group)

    def is_group(self, name: str) -> bool:
        return any(source.is_group(name) for source in self.get_sources())

    def _compose_config_from_defaults_list(
        self, defaults: list[ResultDefault], repo: IConfigRepository
    ) -> DictConfig:
        precedence.last().edit(defaults, repo)
        return super()._compose_config_from_defaults_list(defaults, repo)


def _leaves(config: DictConfig) -> dict[str, Any]:
    hydra: Any = OmegaConf.to_container(config.hydra, resolve=False)
    return dict(precedence.leaves(hydra, ""))


def may_set(key: str, value: Any) -> bool:
    """Return whether a file may set a key of Hydra's to a value."""
    allowed = (values for name, values in FROM_FILES.items() if re.fullmatch(name, key))
    return any(re.fullmatch(values, str(value)) for values in allowed)
