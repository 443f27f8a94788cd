"""The command ``paceline tune``: search for the fastest way to read, or for the batch size."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from framework.cli.allowed import Grant, granted
from framework.cli.arguments import CONFIG_DIR, check_output, read_keys, split_words
from framework.cli.compose_config import composed
from framework.cli.hydra_session import stamp
from framework.cli.outcome import RunOutcome, outcome_of, told_code
from framework.config.rule import Rule
from framework.errors import ConfigError, did_you_mean

Config = dict[str, Any]
RULES = {
    "what": Rule(str, choices=("reading", "batch_size"), number=195),
    "budget": Rule(float, 5, means="a number of seconds", number=195),
    "name": Rule(str | None, number=195),
    "force": Rule(bool, number=195),
    "output": Rule(str | None, means="the name of a file", number=195),
    "memory": Rule(str, means="an amount, as in 8G", number=195),
}
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

HELP = """usage: paceline tune [group=choice] [key=value] ... [budget=60] [name=NAME]
       paceline tune what=batch_size [group=choice] [key=value] ...

Searches for the fastest way to read on this machine, for the run that 'paceline train' would start
with the same words: the number of workers, their kind, the loader, its depth. It times training
steps but keeps no model. All candidates are measured in turn, then the fastest with other depths.
The best is compared with the present settings in pairs. The result is a recipe, which goes with the
other words:

  paceline tune recipes=cifar10 name=here
  paceline train --config-dir . recipes=tuned/here

The present settings stay unless another candidate is faster by more than 3 % and more than chance.

what=batch_size searches for the largest batch that fits, and measures the rate over the batch size.
It runs in a process that can only take the free memory. Another batch size changes what the model
learns; another way to read does not.

keys
  budget: 60         seconds of measuring, after missing stores have been packed
  name: null         of the recipe, tuned/NAME; null: the name of the recipe that it changes
  force: false       true: replace a recipe of that name
  output: null       a JSON file that gets all measurements
  what: reading      reading, batch_size
  memory: null       what=batch_size: take at most this much: 8G, 500M (of the device, on CUDA)

  --config-dir DIR   your own folder, which gets recipes/tuned/NAME.yaml; by default the present one

All other words are those of 'paceline train --help'."""


@dataclass(frozen=True)
class TuneRequest:
    words: tuple[str, ...]  # overrides of ``train``
    config_dir: str | None
    grant: Grant
    what: str = "reading"
    budget: float = 60.0
    name: str | None = None
    force: bool = False
    output: str | None = None
    memory: int | None = None  # bytes

    @property
    def folder(self) -> str:
        return self.config_dir or "."


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    request = parse(arguments)
    show_traceback = any(word.startswith("debug=") for word in request.words)
    outcome = outcome_of(partial(_tune, request), Path("outputs", stamp()), show_traceback)
    return told_code(outcome)


def parse(arguments: Sequence[str]) -> TuneRequest:
    """Take the command line apart. A wrong word is ConfigError C104, C124, C195 or C196."""
    own, words, config_dir = split_words(arguments, RULES)
    for word in words:
        if word.startswith("-"):
            name = word.split("=")[0]
            what = f"no such option{did_you_mean(name, (*CONFIG_DIR, '--help', '-h'))}"
            raise ConfigError(124, name, what, "see 'paceline tune --help'")
    options = read_keys(own, RULES)
    if "memory" in options:
        options["memory"] = _bytes(options["memory"])
    request = TuneRequest(tuple(words), config_dir, granted(list(arguments)), **options)
    ignored = {"reading": ("memory",), "batch_size": ("name", "force")}
    for key in ignored[request.what]:
        if key in own:
            problem = f"what={request.what} would ignore it"
            raise ConfigError(196, f"{key} = {own[key]}", problem, "leave it out")
    return request


def _bytes(text: str) -> int:
    unit = text[-1:].upper() if text[-1:].isalpha() else ""
    number = text[: len(text) - len(unit)]
    if unit not in UNITS or not number.isdecimal() or int(number) == 0:
        what = "is not an amount of memory"
        raise ConfigError(195, f"memory = {text}", what, "give bytes, or 500M, or 8G")
    return int(number) * UNITS[unit]


def _tune(request: TuneRequest) -> RunOutcome:
    config, allowed = composed(request.words, request.grant, request.config_dir, tuple(RULES))
    if "num_processes" in config["parallel"] or "RANK" in os.environ:
        fix = "leave parallel= out, and give the share of a rank as rank_batch_size="
        raise ConfigError(196, "parallel = ddp", "tune measures one replica, in one process", fix)
    run = config["resume"]["run"]
    if run is not None:
        fix = "give the words of that run"
        raise ConfigError(196, f"resume = {run}", "tune cannot continue a run", fix)
    check_output(request.output, 195)
    # These load torch, which a wrong key should not have to wait for.
    if request.what == "reading":
        from framework.commands.tune.search_reading import recipe_path, tune_reading  # noqa: PLC0415

        return tune_reading(request, config, allowed, recipe_path(request))
    from framework.commands.tune.search_batch_size import tune_batch_size  # noqa: PLC0415

    return tune_batch_size(request, config, allowed)
