"""One command as a Hydra application, with errors in one line and an exit code that says what kind of error it was."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.utils import get_args_parser  # pyright: ignore[reportPrivateUsage]
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli.arguments import option, without_options
from framework.cli.explain import explain
from framework.cli.guard import count_references_anew, guard_hydra
from framework.cli.help import help_text
from framework.cli.paths import CONF, ROOT
from framework.cli.rundir import discard_if_empty
from framework.cli.signals import reader_has_gone
from framework.config.targets import did_you_mean
from framework.errors import ConfigError, PacelineError
from framework.system.stopping import Action, undone

Task = Callable[[DictConfig], int]
Result = Callable[[DictConfig], float | None]
UNPICKLES = ("--experimental-rerun",)  # Hydra's: whatever is in the file would be run


class JobFailed(Exception):
    """A job of a sweep that a launcher runs in another process, where its exit code would be lost. It has said why there."""


class _Recipes(SearchPathPlugin):
    """Lets ``recipes=NAME`` be found from any directory."""

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("paceline", f"file://{ROOT}")


def _nothing(config: DictConfig) -> None:
    return None


def run_app(command: str, arguments: list[str], task: Task, result: Result = _nothing) -> int:
    """Compose ``conf/<command>.yaml`` with ``arguments`` and run ``task`` on it, once or for every job of a sweep; after each, ``result`` is what a
    sweeper that searches is told.

    Returns the first exit code that is not 0. Raises ConfigError for what Hydra cannot compose.
    """
    config_dir = option(arguments, "--config-dir", "-cd")
    if (code := _answered(command, arguments, config_dir)) is not None:
        return code
    arguments = _flags_first(arguments)
    codes: list[int] = []
    unforeseen: list[Exception] = []
    home = os.getpid()

    def job(config: DictConfig) -> float | None:
        try:
            codes.append(task(config))
        except BrokenPipeError:
            codes.append(reader_has_gone())
        except Exception as error:
            unforeseen.append(error)
            raise
        if codes[-1] and os.getpid() != home:
            raise JobFailed(codes[-1])
        return result(config)

    os.environ["HYDRA_FULL_ERROR"] = "1"  # exceptions come to us, not to Hydra's printer
    register()
    sys.argv = [f"paceline {command}" if arguments[:1] != ["-sc"] else "paceline", *arguments]
    try:
        with undone(_remover_of_new_folders(arguments)):
            hydra.main(version_base="1.3", config_path=str(CONF), config_name=command)(job)()
    except JobFailed as error:
        codes.append(*error.args)
    except Exception as error:  # a file can make Hydra raise anything
        _discard_sweep()
        if (
            error in unforeseen
            or isinstance(error, PacelineError)
            or (isinstance(error, OSError) and error.filename)
        ):
            raise
        raise explain(command, arguments, error) from error
    finally:
        GlobalHydra.instance().clear()
    return next((code for code in codes if code), 0)


def _answered(command: str, arguments: list[str], config_dir: str | None) -> int | None:
    """The exit code of a question about the configuration; None if a command is to run."""
    if "--help" in arguments or "-h" in arguments:
        print(help_text(command, Path(config_dir) if config_dir else None, arguments))
        return 0
    if config_dir and not Path(config_dir).is_dir():
        raise ConfigError(
            104,
            f"--config-dir {config_dir}",
            "no such folder",
            "give a folder that holds recipes/NAME.yaml",
        )
    key = option(arguments, "--explain")
    if key is None and "--explain" not in arguments:
        return None
    from framework.cli.origins import check_key, print_origins  # noqa: PLC0415  # only who asks waits for it

    check_key(command, key or "")
    register()
    return print_origins(command, without_options(arguments), key or "", config_dir)


@cache
def stamp() -> str:
    """DATE/TIME-PID, one for this command: two runs that start in the same microsecond still differ by their process."""
    return f"{datetime.now():%Y-%m-%d/%H-%M-%S.%f}-{os.getpid()}"  # noqa: DTZ005  # the user's own clock


def _remover_of_new_folders(arguments: list[str]) -> Action:
    """Return an action that removes the directories that Hydra makes for this command, if nothing is in them."""
    places = [f"outputs/{stamp()}", f"outputs/{stamp()}-sweep"]
    places += [
        place.strip("'\"")
        for key in ("hydra.run.dir", "hydra.sweep.dir")
        if (place := option(arguments, key))
    ]
    folders = [folder for place in places for folder in (Path(place), *Path(place).parents)]
    new = [folder.absolute() for folder in folders if not folder.exists()]

    def remove(_: object) -> None:
        for folder in new:
            for job in folder.glob("*/"):  # of a sweep that has not begun it
                with suppress(OSError):
                    job.rmdir()
            _discard_multirun(folder)
            with suppress(OSError):
                folder.rmdir()

    return remove


def _discard_sweep() -> None:
    """Remove the directory Hydra made for a sweep that never was; only its own ``multirun.yaml`` is in it."""
    for sweep_dir in list(Path("outputs").rglob(f"{Path(stamp()).name}-sweep")):
        if _discard_multirun(sweep_dir):
            discard_if_empty(sweep_dir)


def _discard_multirun(sweep_dir: Path) -> bool:
    """Remove Hydra's file about a sweep if nothing else is there, and return whether that is so."""
    if [path.name for path in sweep_dir.glob("*")] != ["multirun.yaml"]:
        return False
    (sweep_dir / "multirun.yaml").unlink()
    return True


def _flags_first(arguments: list[str]) -> list[str]:
    """Options, with their values, before overrides: Hydra's parser wants them so. ConfigError C124 for an option it does not have."""
    known = get_args_parser()._actions  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    actions = {
        name: action for action in known for name in action.option_strings if name not in UNPICKLES
    }
    flags: list[str] = []
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name = word.split("=")[0]
        if not word.startswith("-"):
            rest.append(word)
        elif name not in actions:
            raise ConfigError(
                124,
                name,
                f"no such option{did_you_mean(name, list(actions))}",
                "see --help; keys are given as key=value",
            )
        else:
            takes_value = actions[name].nargs is None and "=" not in word
            flags += [word, *([next(words, "")] if takes_value else [])]
    return [*flags, *rest]


def register() -> None:
    plugins = Plugins.instance()
    if _Recipes not in plugins.discover(SearchPathPlugin):
        plugins.register(_Recipes)
    guard_hydra()
    stamp.cache_clear()
    now = stamp()
    OmegaConf.register_new_resolver(
        "stamp", lambda: now, replace=True
    )  # the same in a process that a launcher sends it to
    OmegaConf.register_new_resolver("slug", slug, replace=True)


def slug(text: str) -> str:
    """``text`` as part of a directory's name: harmless letters only, not too long."""
    return re.sub(r"[^A-Za-z0-9._=,+-]+", "_", text)[:120]


def resolved(config: DictConfig) -> dict[str, Any]:
    """Plain values. ConfigError C103 names every key that must be given and is not; C104 what cannot be resolved."""
    count_references_anew()
    try:
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise ConfigError(
                103,
                ", ".join(missing),
                "must be given",
                f"add {' '.join(f'{key}=...' for key in missing)}",
            )
        plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ConfigError(
            104,
            error.full_key or "config",
            " ".join(str(error.msg or error).split()),
            "correct the interpolation",
        ) from error
    except RecursionError as error:
        raise ConfigError(
            104, "config", "references to references without end", "name the last of them"
        ) from error
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}
