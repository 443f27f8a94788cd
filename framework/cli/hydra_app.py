"""Run a command as a Hydra application: one line per error, and an exit code for its kind."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from framework.cli.arguments import TAKES_VALUE, config_dir_of, option, without_options
from framework.cli.explain import explain, help_text, print_origins
from framework.cli.hydra_session import IsSweep, hydra_session, stamp
from framework.cli.signals import reader_has_gone
from framework.errors import ConfigError, PacelineError, did_you_mean
from framework.system.stopping import undone

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

Task = Callable[[DictConfig], int]
Result = Callable[[DictConfig], float | None]
FLAGS = ("--run", "-r", "--multirun", "-m", "--shell-completion", "-sc", "--resolve")


class JobFailed(Exception):
    """A job of a sweep failed in another process of a launcher, and has printed why."""


def run_app(command: str, arguments: list[str], task: Task, result: Result = lambda _: None) -> int:
    """Compose ``conf/<command>.yaml`` and run the task on it, or on every job of a sweep.

    ``task`` returns an exit code, and ``result`` what a sweeper that searches optimizes.

    Returns:
        The first exit code that is not 0.
    """
    if "--help" in arguments or "-h" in arguments:
        print(help_text(command, option(arguments, "--config-dir", "-cd"), arguments))
        return 0
    config_dir = config_dir_of(arguments)
    key = option(arguments, "--explain")
    if key is not None or "--explain" in arguments:
        return print_origins(command, without_options(arguments), key or "", config_dir)
    args = _parsed(arguments)
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

    # The shell completion takes the program's name from here.
    sys.argv = [f"paceline {command}" if not args.shell_completion else "paceline", *arguments]
    try:
        with (
            hydra_session(command, config_dir) as hydra,
            _without_new_folders(command, arguments),
        ):
            _do(hydra, command, args, job)
    except JobFailed as error:
        codes.append(*error.args)
    except Exception as error:  # a file can make Hydra raise anything
        names_a_file = isinstance(error, OSError) and error.filename
        if error in unforeseen or isinstance(error, PacelineError) or names_a_file:
            raise
        raise explain(command, arguments, error, config_dir) from error
    return next((code for code in codes if code), 0)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(124, "options", message, "see --help; keys are given as key=value")


def _parsed(arguments: list[str]) -> Namespace:
    """Parse options and overrides in any order. ConfigError C124 for an option that is not there.

    Only Hydra's safe options are: ``--experimental-rerun`` unpickles any file.
    """
    options = (*FLAGS, *TAKES_VALUE)
    for before, word in zip(["", *arguments], arguments, strict=False):
        name = word.split("=")[0]
        if word.startswith("-") and name not in options and before not in TAKES_VALUE:
            what = f"no such option{did_you_mean(name, list(options))}"
            raise ConfigError(124, name, what, "see --help; keys are given as key=value")
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*", help="key=value")
    one_of = parser.add_mutually_exclusive_group()
    one_of.add_argument("--run", "-r", action="store_true")
    one_of.add_argument("--multirun", "-m", action="store_true")
    one_of.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    one_of.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    args = parser.parse_intermixed_args(arguments)
    if args.resolve and args.cfg is None:
        raise ConfigError(124, "--resolve", "resolves nothing alone", "add --cfg job")
    return args


def _do(hydra: "Hydra", name: str, args: Namespace, job: Any) -> None:
    """Do what the options ask for: print, complete, run, or sweep."""
    words: list[str] = args.overrides
    if args.cfg:
        hydra.show_cfg(name, words, args.cfg, None, args.resolve)
    elif args.shell_completion:
        hydra.shell_completion(name, words)
    elif args.multirun or not _was_run(hydra, name, words, job):
        if "RANK" in os.environ:
            # The first job would meet the other ranks, and the second would wait for them forever.
            what = "a sweep inside an existing launch would be run by every rank"
            fix = "start it without torchrun: parallel=ddp starts ranks"
            raise ConfigError(122, "hydra.mode = MULTIRUN", what, fix)
        hydra.multirun(name, job, [*words, "hydra.mode=MULTIRUN"])


def _was_run(hydra: "Hydra", name: str, words: list[str], job: Any) -> bool:
    """Run the job, unless a file or a typed ``hydra.mode`` asks for a sweep.

    Composing takes 0.1 s. So the question is not asked before, by composing twice.
    """
    loader: Any = hydra.config_loader
    loader.expects_run = True
    try:
        hydra.run(name, job, words)
    except IsSweep:
        return False
    except PacelineError:
        raise
    except Exception:
        # Hydra refuses ``a=1,2`` for a single run before it reads the file that asks for a sweep.
        if not loader.expects_run:  # it has composed
            raise
        loader.expects_run = False
        config = None
        with suppress(Exception):  # of composing: the first error says what is wrong
            overrides = OverridesParser.create().parse_overrides(words)
            if any(override.is_sweep_override() for override in overrides):
                mode = RunMode.MULTIRUN
                config = loader.load_configuration(
                    name, words, mode, validate_sweep_overrides=False
                )
        if config is None or config.hydra.mode != RunMode.MULTIRUN:
            raise
        return False
    return True


@contextmanager
def _without_new_folders(command: str, arguments: list[str]) -> Generator[None]:
    """Remove the directories that Hydra makes for this command, if it fails and they are empty."""
    typed = [option(arguments, key) for key in ("hydra.run.dir", "hydra.sweep.dir")]
    places = [place.strip("'\"") for place in typed if place]
    for folder in ("outputs", f"outputs/{command}"):
        places += [f"{folder}/{stamp()}", f"{folder}/{stamp()}-sweep"]
    folders = [folder for place in places for folder in (Path(place), *Path(place).parents)]
    new = [folder.absolute() for folder in folders if not folder.exists()]

    def remove(_: object) -> None:
        for folder in new:
            for job in folder.glob("*/"):  # of a sweep that has not begun it
                with suppress(OSError):
                    job.rmdir()
            if [path.name for path in folder.glob("*")] == ["multirun.yaml"]:  # Hydra's, of a sweep
                (folder / "multirun.yaml").unlink()
            with suppress(OSError):
                folder.rmdir()

    try:
        with undone(remove):
            yield
    except Exception:
        remove(None)
        raise
