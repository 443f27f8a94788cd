"""``paceline tune``: the fastest way to read on this machine, kept as a recipe; or the batch size."""

import math
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from framework.cli.allowed import Grant, granted
from framework.cli.arguments import option
from framework.cli.compose_config import composed
from framework.cli.hydra_session import stamp
from framework.cli.outcome import RunOutcome, outcome_of
from framework.commands.train import train
from framework.commands.tune.recipe_writer import (
    check_name,
    recipe_text,
    typed,
    without_found,
    write_recipe,
)
from framework.config.targets import did_you_mean
from framework.errors import ConfigError
from framework.system.durable import write_json
from framework.system.extras import needed
from framework.system.stopping import printed, reason, undone

Config = dict[str, Any]
WHAT = ("reading", "batch_size")
OPTIONS = ("--config-dir", "-cd", "--help", "-h")
LEAST_BUDGET_S = 5.0
LOADERS = ("plain", "prefetch", "stream")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

HELP = """usage: paceline tune [group=choice] [key=value] ... [budget=60] [name=NAME]
       paceline tune what=batch_size [group=choice] [key=value] ...

Tries, on this machine and on the run that 'paceline train' with the same words would be, other ways to read: the number of workers, their
kind, the loader, its depth. Whole training steps are timed; nothing is trained or kept. All candidates are measured a little, the fastest
third longer, and so on; the last one then meets the present settings in pairs. What is found is written as a recipe:

  paceline tune recipes=cifar10 name=here
  paceline train --config-dir . recipes=tuned/here

The present settings (yours where you type some) stay unless another is faster by more than 3 % and more than chance: never slower.

what=batch_size finds the largest batch that fits, by doubling and bisection, and the rate over the batch size. It runs in a process that
can take no more memory than is free. Another batch size changes what is learned; the ways to read do not.

keys
  budget: 60         seconds of measuring, after what is missing has been packed
  name: null         of the recipe, tuned/NAME; null: that of the recipe it is made of
  force: false       write over a recipe of that name
  output: null       a JSON file of everything that was measured
  what: reading      reading, batch_size
  memory: null       what=batch_size: take no more than this: 8G, 500M (of the device, on CUDA)

  --config-dir DIR   your own folder, where recipes/tuned/NAME.yaml is written; the present folder where none is given

All other words are those of 'paceline train --help'."""


@dataclass(frozen=True)
class Wish:
    """The command's own keys, and ``words``: the run's. ``memory``: bytes."""

    words: tuple[str, ...]
    config_dir: str | None
    grant: Grant
    what: str = "reading"
    budget: float = 60.0
    name: str | None = None
    force: bool = False
    output: str | None = None
    memory: int | None = None

    @property
    def folder(self) -> str:
        """The user's folder."""
        return self.config_dir or "."


def main(arguments: list[str]) -> int:
    """The command. Returns the exit code."""
    if arguments[:1] == ["-sc"]:
        return train.main(arguments)
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    wish = parsed(arguments)
    show_traceback = any(word.startswith("debug=") for word in wish.words)
    outcome = outcome_of(partial(_tune, wish), Path("outputs", stamp()), show_traceback)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def parsed(arguments: Sequence[str]) -> Wish:
    """The words of the command line. ConfigError C104, C124, C195, C196."""
    config_dir = option(list(arguments), "--config-dir", "-cd")
    own, words = _sorted_out(arguments)
    if config_dir is not None and not Path(config_dir).is_dir():
        raise ConfigError(
            104,
            f"--config-dir {config_dir}",
            "no such folder",
            "give a folder that holds recipes/NAME.yaml",
        )
    wish = Wish(tuple(words), config_dir, granted(list(arguments)), **own)
    for key in ("memory",) if wish.what == "reading" else ("name", "force"):
        if key in own:
            raise ConfigError(
                196, f"{key} = {own[key]}", f"what={wish.what} would ignore it", "leave it out"
            )
    return wish


def _sorted_out(arguments: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """The command's own keys, and the run's words; options left out."""
    own: dict[str, Any] = {}
    words: list[str] = []
    for before, word in zip(["", *arguments], arguments, strict=False):
        key, _, value = word.partition("=")
        if word.startswith("-") and key not in OPTIONS:
            raise ConfigError(
                124,
                key,
                f"no such option{did_you_mean(key, OPTIONS)}",
                "see 'paceline tune --help'",
            )
        if key in OWN and "=" in word:
            own[key] = OWN[key](value)
        elif key not in OPTIONS and before not in OPTIONS:
            words.append(word)
    return own, words


def _budget(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not LEAST_BUDGET_S <= seconds < math.inf:
        raise ConfigError(
            195,
            f"budget = {text}",
            "not a time to measure in",
            f"give seconds, at least {LEAST_BUDGET_S:g}",
        )
    return seconds


def _what(text: str) -> str:
    if text not in WHAT:
        raise ConfigError(
            195,
            f"what = {text}",
            f"nothing to tune{did_you_mean(text, WHAT)}",
            f"choose {' or '.join(WHAT)}",
        )
    return text


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(195, f"force = {text}", "not a value it can have", "give true or false")
    return text.lower() == "true"


def _bytes(text: str) -> int:
    unit = text[-1:].upper() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    if unit not in UNITS or not number.isdecimal() or int(number) == 0:
        raise ConfigError(
            195, f"memory = {text}", "not an amount of memory", "give bytes, or 500M, or 8G"
        )
    return int(number) * UNITS[unit]


def _text(text: str) -> str | None:
    return None if text in ("null", "") else text.strip("'\"")


OWN: Mapping[str, Any] = {
    "what": _what,
    "budget": _budget,
    "name": _text,
    "force": _flag,
    "output": _text,
    "memory": _bytes,
}


def _tune(wish: Wish) -> RunOutcome:
    """What can be wrong with the words first; torch is loaded only for a configuration that is sound."""
    config, allowed = composed(wish.words, wish.grant, wish.config_dir)
    _refuse(config)
    if wish.output and not Path(wish.output).absolute().parent.is_dir():
        raise ConfigError(
            195,
            f"output = {wish.output}",
            "in a folder that is not there",
            "make it, or choose another",
        )
    path = None if wish.what == "batch_size" else recipe_path(wish)
    from framework.cli.progress import pack_missing  # noqa: PLC0415

    pack_missing(config, allowed)
    return (
        _tune_reading(wish, config, allowed, path)
        if path is not None
        else _tune_batch_size(wish, config, allowed)
    )


def _refuse(config: Config) -> None:
    """ConfigError C196 for what would be ignored."""
    if "num_processes" in config["parallel"] or "RANK" in os.environ:
        what = "tune measures one replica, in one process"
        raise ConfigError(
            196,
            "parallel = ddp",
            what,
            "leave parallel= out, and give one rank's part as rank_batch_size=",
        )
    if (run := config["resume"]["run"]) is not None:
        raise ConfigError(
            196, f"resume = {run}", "nothing is gone on with", "give that run's own words"
        )


def recipe_path(wish: Wish) -> Path:
    """Where the recipe goes. ConfigError C197 where there is one already, or the name cannot be."""
    bases = typed(wish.words, wish.config_dir).bases
    name = wish.name or (bases[-1].split("/")[-1] if bases else "defaults")
    check_name(name, bases)
    path = Path(wish.folder, "recipes", "tuned", f"{name}.yaml")
    if path.exists() and not wish.force:
        raise ConfigError(
            197, str(path), "is there already", "give another name=, or force=true to write over it"
        )
    return path


def _tune_reading(wish: Wish, config: Config, allowed: tuple[str, ...], path: Path) -> RunOutcome:
    import torch  # noqa: PLC0415

    from framework.commands.tune.print_search import Told  # noqa: PLC0415
    from framework.commands.tune.search import Search  # noqa: PLC0415
    from framework.measure.host import threads_per_rank  # noqa: PLC0415

    needed("scipy", "stats")  # for the verdict, which comes after minutes of measuring
    torch.set_num_threads(threads_per_rank())  # as a run does
    loaders, refused = _loaders(wish)
    present = _loader_name(config, loaders)
    search = Search(config, allowed, loaders, present)
    told = Told(search, refused)
    with undone(printed(told.stopped)), reason("stopped{by}: nothing was written"):
        told.begin(wish.budget)
        final = told.climb(wish.budget)
    _keep(wish, config, path, search, told, final)
    if wish.output:
        write_json(
            Path(wish.output),
            {"command": sys.argv, "machine": _machine(), **told.measured, "recipe": str(path)},
        )
    return RunOutcome(0, "tuned")


def _keep(wish: Wish, config: Config, path: Path, search: Any, told: Any, final: Any) -> None:
    """Write the recipe, and say how to use it."""
    from framework.commands.tune.candidate import applied  # noqa: PLC0415
    from framework.commands.tune.print_search import won  # noqa: PLC0415

    winner = None if final.winner == final.default else final.winner
    words = (
        wish.words
        if winner is None
        else without_found(wish.words, winner.loader != final.default.loader)
    )
    found = typed(words, wish.config_dir)
    again = [f"recipes=tuned/{path.stem}", *found.again]
    command = ["paceline", "train", "--config-dir", wish.folder, *again]
    tuned_by = shlex.join(["paceline", "tune", *wish.words])
    comments = [
        f"{won(final)}; tuned {time.strftime('%Y-%m-%d %H:%M')} on {_where()}",
        told.verdict,
        f"{tuned_by} budget={wish.budget:g}",
        *([f"give with it: {shlex.join(found.again)}"] if found.again else []),
    ]
    wanted = config if winner is None else applied(config, winner, search.loaders)
    write_recipe(path, recipe_text(found, winner, comments), wanted, again, wish.grant, wish.folder)
    print(f"written: {path}; train with it:\n  {shlex.join(command)}")


def _machine() -> Config:
    from framework.measure.host import machine  # noqa: PLC0415

    return machine()


def _where() -> str:
    """The machine in some words."""
    facts = _machine()
    cores = f"{facts['num_cores']} core{'' if facts['num_cores'] == 1 else 's'} of {facts['processor'] or 'an unnamed processor'}"
    return f"{cores}, {', '.join(facts['gpus']) or 'no GPU'}"


def _loaders(wish: Wish) -> tuple[dict[str, Config], dict[str, str]]:
    """Each loader as it composes with the other words; why those do not that do not."""
    words = without_found(wish.words, loader_changed=True)
    found: dict[str, Config] = {}
    refused: dict[str, str] = {}
    for name in LOADERS:
        try:
            found[name] = composed([*words, f"loader={name}"], wish.grant, wish.config_dir)[0][
                "loader"
            ]
        except ConfigError as error:
            refused[name] = str(error)
    return found, refused


def _loader_name(config: Config, loaders: Mapping[str, Config]) -> str:
    """The present loader's: that of the choice with its target, or the target itself where it is the user's own."""
    target = config["loader"]["_target_"]
    return next((name for name, block in loaders.items() if block["_target_"] == target), target)


def _tune_batch_size(wish: Wish, config: Config, allowed: tuple[str, ...]) -> RunOutcome:
    from framework.commands.tune.batch_sizes import Sizes  # noqa: PLC0415
    from framework.commands.tune.memory_guard import Guarded, raised  # noqa: PLC0415
    from framework.commands.tune.print_batch_sizes import tell_curve, tell_trial  # noqa: PLC0415
    from framework.commands.tune.print_search import busy_note  # noqa: PLC0415
    from framework.measure.host import num_cores  # noqa: PLC0415

    if note := busy_note(num_cores()):
        print(note)
    with closing(Guarded(config, allowed, wish.memory)) as guarded:
        sizes = Sizes(guarded.attempt, guarded.num_records, config["accumulate"], wish.budget)

        def tell() -> None:
            if sizes.curve.fitting:
                tell_curve(sizes.curve, wish.words, config, guarded.cuda)

        words = "stopped{by}: this is what was found until then; nothing was written"
        with undone(printed(tell)), reason(words):
            for trial in sizes.run():
                tell_trial(trial)
                if not sizes.curve.fitting:
                    raise raised(trial)
        found = tell_curve(sizes.curve, wish.words, config, guarded.cuda)
    if wish.output:
        write_json(Path(wish.output), {"command": sys.argv, "machine": _machine(), **found})
        print(f"written: {wish.output}")
    return RunOutcome(0, "tuned")
