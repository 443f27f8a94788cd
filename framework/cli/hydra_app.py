"""Compose and check training configurations; run a command as a Hydra application."""

import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework.cli import arguments, devices_launcher, signals
from framework.cli.explain import Words, explain, explained, help_text, print_origins
from framework.cli.hydra_session import IsSweep, hydra_session, resolved, stamp
from framework.cli.precedence import DATA_PATHS, last
from framework.config import schema
from framework.config.targets import check_targets, completed
from framework.errors import ConfigError, PacelineError, did_you_mean
from framework.system.imports import begin_torch
from framework.system.stopping import undone

if TYPE_CHECKING:
    from hydra._internal.hydra import Hydra

Config = dict[str, Any]
Task = Callable[[DictConfig], int]
Result = Callable[[DictConfig], float | None]
FLAGS = ("--run", "-r", "--multirun", "-m", "--shell-completion", "-sc", "--resolve")
MADE = "framework.data.dataset."  # the source of a user's Dataset
# keys of data that are read by their names
READ = ("train", "val", "test", "val_transform", "source", "writer", "classes")


def composed(
    overrides: Words, grant: arguments.Grant, config_dir: str | None = None, own_keys: Words = ()
) -> tuple[Config, tuple[str, ...]]:
    """Compose and check what ``paceline train`` would train with these overrides.

    A misspelled word may mean one of ``own_keys``. Return the configuration as plain values, and
    the prefixes of the user's packages.
    """
    with explained("train", overrides, config_dir, own_keys), hydra_session("train", config_dir):
        return checked(compose("train", list(overrides)), grant)


def checked(composition: DictConfig, grant: arguments.Grant) -> tuple[Config, tuple[str, ...]]:
    """Check a composed configuration of ``train``. Return what ``composed`` returns.

    ConfigError C103 without data, C174 for a typed key that ready batches would ignore, C205 for
    validation data that a fold replaces, and C210 for a typed key that counts for nothing.
    """
    config = resolved(composition)
    allowed = arguments.allowed_targets(config, grant)
    schema.check(config)
    config = completed(config)
    check_targets(config, allowed)
    plain: Any = OmegaConf.to_container(composition)
    data, has_folds = plain["data"], plain["folds"] is not None
    if has_folds and any(f"{key}.".startswith("data.val.") for key in last().data_keys):
        what = "is not used, because a fold of data.train validates"
        raise ConfigError(205, f"data.val = {data['val']}", what, "leave it or folds out")
    for split in DATA_PATHS if plain["dataset"] is None else ():
        is_open = isinstance(data[split], str) and "${dataset}" in data[split]
        if is_open and not (split == "val" and has_folds):
            fix = f"add data.{split}=STORE, dataset=FOLDER with the packed stores, or recipes=NAME"
            raise ConfigError(103, f"data.{split}", "must be given, since no recipe says it", fix)
    # a sweep may type a key for other jobs
    is_sweep = HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN
    typed = set[str]() if is_sweep else last().keys
    for key, why, fix in _unused(plain):
        if key in typed and (value := OmegaConf.select(composition, key)) is not None:
            raise ConfigError(210, f"{key} = {value}"[:100], why, fix)
    for key in sorted(typed):
        group, name, *_ = (*key.split("."), "")
        if group == "data" and name and name not in READ and f"${{data.{name}" not in str(plain):
            raise ConfigError(210, key, "nothing reads it", "correct the name, or leave it out")
    if config["data"]["source"]["_target_"] == schema.LOADER:
        keys = last().keys.union(*(layer.values for layer in last().layers if layer.is_recipe))
        for key in sorted(keys & {"shuffle", "verify", "workers.num", "workers.timeout_s"}):
            what = "a DataLoader's batches come as they are"
            fix = "set it in the DataLoader, or choose data=dataset"
            raise ConfigError(174, f"{key}, data = dataloader", what, fix)
        if "batch_size" not in keys:
            config = {**config, "batch_size": None}
    return config, allowed


def checked_options(
    cfg: DictConfig, grant: arguments.Grant, rules: Mapping[str, schema.Rule], groups: Sequence[str]
) -> tuple[Config, tuple[str, ...]]:
    """Check the configuration of a command that does not train. Return what ``composed`` returns.

    Beside the keys of ``rules`` it may have blocks of ``groups`` alone.
    """
    config = resolved(cfg)
    allowed = arguments.allowed_targets(config, grant)
    names = [key.partition(".")[0] for key in rules]
    schema.check_known(config, (*names, *groups, "allow_targets"))
    schema.check_values(config, rules)
    check_targets(config, allowed)
    return config, allowed


def _unused(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield each key that would count for nothing here, why, and what to do."""
    augment, order = config["augment"], config["order"]
    if config["optim"].get("scaling") in (None, "none"):
        fix = "add optim.scaling=linear, or leave it out"
        yield "optim.reference_batch_size", "is not used without optim.scaling", fix
    if config["on_nan"] != "skip" and config["precision"].get("dtype") != "fp16":
        yield "max_skips", "no step is skipped", "add on_nan=skip, or leave it out"
    if config["resume"]["run"] is None and not config["resume"]["auto"]:
        yield "resume.allow", "nothing is resumed", "add resume=RUN_DIR, or leave it out"
    if str(config["data"]["source"]["_target_"]).startswith(MADE):
        yield "verify", "a Dataset has no CRC32 to compare", "leave it out"
    if config["rank_batch_size"] is not None:
        yield "batch_size", "is replaced by rank_batch_size", "give one of the two"
    if config["data"].get("val") is None and config["data"].get("test") is None:
        for key in ("val_batch_size", "data.val_transform"):
            yield key, "there is no validation", "add data.val=PATH, or leave it out"
    if augment.get("padding") == 0:
        fix = "leave out augment.padding=0, or this"
        yield "augment.padding_mode", "no image is padded", fix
    if augment.get("flip") == 0:
        yield "augment.alternate", "no image is mirrored", "leave out augment.flip=0, or this"
    if not config["shuffle"] or order.get("block_records") is None or "_target_" in order:
        for key in ("order.block_records", "order.window_blocks"):
            fix = "add order=block without shuffle=false, or leave it out"
            yield key, "no blocks are shuffled", fix
    if config["workers"]["num"] == 0:
        for key in ("workers.kind", "workers.start_method"):
            yield key, "there are no workers", "leave out workers.num=0, or this"
    if "${dataset}" not in str(config):
        what = "is not used, because data.train and data.val are named one by one"
        yield "dataset", what, "leave it or them out"
    if "${source}" not in str(config):
        fix = "add recipes=NAME, or pack it by 'paceline pack'"
        yield "source", "is used only by recipes that pack it", fix


def run_app(
    command: str,
    words: list[str],
    task: Task,
    result: Result = lambda _: None,
    typed: Words | None = None,
) -> int:
    """Compose ``conf/<command>.yaml`` and run the task on it, or on every job of a sweep.

    ``task`` returns an exit code, and ``result`` what a sweeper that searches optimizes. ``typed``
    are the words of the command line, if ``words`` has some of a file. Return the first exit code
    that is not 0, or that of the signal which has stopped a sweep.
    """
    config_dir = arguments.config_dir_of(words)
    if "--help" in words or "-h" in words:
        print(help_text(command, config_dir, words))
        return 0
    key = arguments.typed_value(words, "--explain")
    if key is not None or "--explain" in words:
        return print_origins(command, arguments.without_options(words), key or "", config_dir)
    args = _parsed(words)
    sweep = devices_launcher.DevicesLauncher
    sweep.command = (command, *(words if typed is None else typed))
    sweep.ended.clear()
    codes: list[int] = []
    unforeseen: list[Exception] = []
    home = os.getpid()

    def job(config: DictConfig) -> float | None:
        try:
            codes.append(task(config))
        except BrokenPipeError:
            codes.append(signals.closed_output_code())
        except Exception as error:
            unforeseen.append(error)
            raise
        if codes[-1] and os.getpid() != home:
            raise devices_launcher.JobFailed(codes[-1])
        return result(config)

    # The shell completion takes the program's name from here.
    sys.argv = [f"paceline {command}" if not args.shell_completion else "paceline", *words]
    try:
        folders = _without_new_folders(command, words, codes)
        with hydra_session(command, config_dir) as hydra, folders:
            _do(hydra, command, args, job)
    except devices_launcher.SweepStopped as stop:
        codes[:] = stop.args
    except devices_launcher.JobFailed as error:
        codes.append(*error.args)
    except Exception as error:  # a file can make Hydra raise anything
        names_a_file = isinstance(error, OSError) and error.filename
        if error in unforeseen or isinstance(error, PacelineError) or names_a_file:
            raise
        raise explain(command, words, error, config_dir) from error
    devices_launcher.print_failures()
    codes += [ended.code for ended in sweep.ended]
    return next((code for code in codes if code), 0)


class _Parser(ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(124, "options", message, "see --help; keys are given as key=value")


def _parsed(words: list[str]) -> Namespace:
    # only Hydra's safe options: ``--experimental-rerun`` unpickles any file
    options = (*FLAGS, *arguments.TAKES_VALUE)
    for before, word in zip(["", *words], words, strict=False):
        name = word.split("=")[0]
        if word.startswith("-") and name not in options and before not in arguments.TAKES_VALUE:
            what = f"no such option{did_you_mean(name, list(options))}"
            raise ConfigError(124, name, what, "see --help; keys are given as key=value")
    parser = _Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("overrides", nargs="*")
    one_of = parser.add_mutually_exclusive_group()
    one_of.add_argument("--run", "-r", action="store_true")
    one_of.add_argument("--multirun", "-m", action="store_true")
    one_of.add_argument("--cfg", "-c", choices=["job", "hydra", "all"])
    one_of.add_argument("--shell-completion", "-sc", action="store_true")
    parser.add_argument("--resolve", action="store_true")
    parser.add_argument("--config-dir", "-cd")
    args = parser.parse_intermixed_args(words)
    if args.resolve and args.cfg is None:
        raise ConfigError(124, "--resolve", "resolves nothing alone", "add --cfg job")
    return args


def _do(hydra: "Hydra", name: str, args: Namespace, job: Any) -> None:
    words: list[str] = args.overrides
    loader: Any = hydra.config_loader
    if args.cfg:
        hydra.show_cfg(name, words, args.cfg, None, args.resolve)
        return
    if args.shell_completion:
        with redirect_stdout(StringIO()) as output:
            hydra.shell_completion(name, words)
        text = output.getvalue()
        if words[0].startswith("query"):  # a shell would run $(...) in the name of a file
            text = re.sub(r"\S*[^\s\w.,:/=@+~%\[\]-]\S*", "", text)
        print(text, end="")
        return
    if (asked := devices_launcher.asked_job()) is not None:
        devices_launcher.run_asked(hydra, name, asked, job)
        return
    is_sweep = args.multirun
    # Hydra refuses ``a=1,2`` for a single run before it reads the file that asks for a sweep.
    with suppress(Exception):  # of composing: the error of the single run says what is wrong
        overrides = OverridesParser.create().parse_overrides(words)
        if not is_sweep and any(override.is_sweep_override() for override in overrides):
            mode = RunMode.MULTIRUN
            config = loader.load_configuration(name, words, mode, validate_sweep_overrides=False)
            is_sweep = config.hydra.mode == RunMode.MULTIRUN
    if not is_sweep:
        begin_torch()  # beside composing
        loader.expects_run = True  # composing takes 0.1 s, so it is not done before to ask
        try:
            hydra.run(name, job, words)
            return
        except IsSweep:
            pass
    if "RANK" in os.environ:
        # The first job would meet the other ranks, and the second would wait for them forever.
        what = "a sweep inside an existing launch would be run by every rank"
        fix = "start it without torchrun: parallel=ddp starts ranks"
        raise ConfigError(122, "hydra.mode = MULTIRUN", what, fix)
    hydra.multirun(name, job, [*words, "hydra.mode=MULTIRUN"])


@contextmanager
def _without_new_folders(command: str, words: list[str], codes: list[int]) -> Generator[None]:
    """Remove the directories that Hydra makes for this command, if it fails and they are empty.

    ``codes`` gets the exit codes of its jobs inside the block.
    """
    typed = [arguments.typed_value(words, key) for key in ("hydra.run.dir", "hydra.sweep.dir")]
    places = [place.strip("'\"") for place in typed if place]
    for folder in ("outputs", f"outputs/{command}"):
        places += [f"{folder}/{stamp()}", f"{folder}/{stamp()}-sweep"]
    folders = [folder for place in places for folder in (Path(place), *Path(place).parents)]
    new = [folder.absolute() for folder in folders if not folder.exists()]

    def remove(_: object) -> None:
        for folder in new:
            jobs = list(folder.glob("*/"))  # of a sweep that has not begun them
            for place in (*jobs, folder):
                if [path.name for path in place.glob("*")] == ["multirun.yaml"]:  # Hydra's
                    (place / "multirun.yaml").unlink()
                with suppress(OSError):
                    place.rmdir()

    try:
        with undone(remove):
            yield
        if any(codes):
            remove(None)
    except Exception:
        remove(None)
        raise
