"""The command ``paceline tune``: search for the fastest way to read, or for the batch size."""

import os
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.cli.allowed import Grant, granted
from framework.cli.compose_config import composed
from framework.cli.hydra_session import stamp
from framework.cli.outcome import RunOutcome, outcome_of
from framework.commands.own_keys import CONFIG_DIR, read_keys, split_words
from framework.commands.train import train
from framework.commands.tune.recipe_writer import (
    check_name,
    recipe_text,
    typed,
    without_searched,
    write_recipe,
)
from framework.config.rule import Rule
from framework.config.targets import did_you_mean
from framework.errors import ConfigError
from framework.system.durable import write_json
from framework.system.extras import needed
from framework.system.stopping import printed, reason, undone

if TYPE_CHECKING:  # these load torch
    from framework.commands.tune.halving import Final
    from framework.commands.tune.print_search import SearchPrinter

Config = dict[str, Any]
RULES = {
    "what": Rule(str, choices=("reading", "batch_size"), number=195),
    "budget": Rule(float, 5, means="a number of seconds", number=195),
    "name": Rule(str | None, number=195),
    "force": Rule(bool, number=195),
    "output": Rule(str | None, means="the name of a file", number=195),
    "memory": Rule(str, means="an amount, as in 8G", number=195),
}
LOADERS = ("plain", "prefetch", "stream")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}

HELP = """usage: paceline tune [group=choice] [key=value] ... [budget=60] [name=NAME]
       paceline tune what=batch_size [group=choice] [key=value] ...

Searches for the fastest way to read on this machine, for the run that 'paceline train' would start
with the same words: the number of workers, their kind, the loader, its depth. It times training
steps but keeps no model. All candidates are measured briefly, the fastest third for longer, and so
on. The last one is compared with the present settings in pairs. The result is a recipe:

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
    """The command line."""

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
        """The user's folder."""
        return self.config_dir or "."


def main(arguments: list[str]) -> int:
    """Run the command. Return the exit code."""
    if arguments[:1] == ["-sc"]:
        return train.main(arguments)
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    request = parse(arguments)
    show_traceback = any(word.startswith("debug=") for word in request.words)
    outcome = outcome_of(partial(_tune, request), Path("outputs", stamp()), show_traceback)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def parse(arguments: Sequence[str]) -> TuneRequest:
    """Take the command line apart.

    Raises:
        ConfigError: C104 if ``--config-dir`` does not name a folder, C124 for another option, C195
            for an impossible value, C196 for a key without effect.

    """
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
    ignored = ("memory",) if request.what == "reading" else ("name", "force")
    for key in ignored:
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
    config, allowed = composed(request.words, request.grant, request.config_dir)
    _check_run(config)
    if request.output and not Path(request.output).absolute().parent.is_dir():
        what = "is in a folder that does not exist"
        raise ConfigError(195, f"output = {request.output}", what, "make it, or choose another")
    path = recipe_path(request) if request.what == "reading" else None
    from framework.cli.progress import pack_missing  # noqa: PLC0415  # torch is slow to import

    pack_missing(config, allowed)
    if path is None:
        return _tune_batch_size(request, config, allowed)
    return _tune_reading(request, config, allowed, path)


def _check_run(config: Config) -> None:
    """Check that no setting would be ignored.

    Raises:
        ConfigError: C196 if one would.

    """
    if "num_processes" in config["parallel"] or "RANK" in os.environ:
        fix = "leave parallel= out, and give the share of a rank as rank_batch_size="
        raise ConfigError(196, "parallel = ddp", "tune measures one replica, in one process", fix)
    run = config["resume"]["run"]
    if run is not None:
        fix = "give the words of that run"
        raise ConfigError(196, f"resume = {run}", "tune cannot continue a run", fix)


def recipe_path(request: TuneRequest) -> Path:
    """Return the path of the recipe to write.

    Raises:
        ConfigError: C197 if the recipe exists, or cannot have its name.

    """
    bases = typed(request.words, request.config_dir).bases
    name = request.name or (bases[-1].split("/")[-1] if bases else "defaults")
    check_name(name, bases)
    path = Path(request.folder, "recipes", "tuned", f"{name}.yaml")
    if path.exists() and not request.force:
        fix = "give another name=, or force=true to replace it"
        raise ConfigError(197, str(path), "exists already", fix)
    return path


def _tune_reading(
    request: TuneRequest, config: Config, allowed: tuple[str, ...], path: Path
) -> RunOutcome:
    import torch  # noqa: PLC0415

    from framework.commands.tune.print_search import SearchPrinter  # noqa: PLC0415
    from framework.commands.tune.search import Search  # noqa: PLC0415
    from framework.measure.host import machine, threads_per_rank  # noqa: PLC0415

    needed("scipy", "stats")  # for the verdict, which comes after minutes of measuring
    torch.set_num_threads(threads_per_rank())  # as a run does
    loaders, refused = _loaders(request)
    target = config["loader"]["_target_"]
    # A loader of the user goes by its target.
    loader = next((name for name in loaders if loaders[name]["_target_"] == target), target)
    printer = SearchPrinter(Search(config, allowed, loaders, loader), refused)
    with undone(printed(printer.stopped)), reason("stopped{by}: nothing was written"):
        printer.begin(request.budget)
        final = printer.climb(request.budget)
    _keep(request, config, path, printer, final)
    if request.output:
        facts = {"command": sys.argv, "machine": machine(), **printer.measured, "recipe": str(path)}
        write_json(Path(request.output), facts)
    return RunOutcome(0, "tuned")


def _loaders(request: TuneRequest) -> tuple[dict[str, Config], dict[str, str]]:
    """Return the configuration of each loader that composes with the run, and why others do not."""
    words = without_searched(request.words, loader_changed=True)
    loaders: dict[str, Config] = {}
    refused: dict[str, str] = {}
    for name in LOADERS:
        try:
            config, _ = composed([*words, f"loader={name}"], request.grant, request.config_dir)
            loaders[name] = config["loader"]
        except ConfigError as error:
            refused[name] = str(error)
    return loaders, refused


def _keep(
    request: TuneRequest, config: Config, path: Path, printer: "SearchPrinter", final: "Final"
) -> None:
    """Write the recipe, and print how to use it."""
    from framework.commands.tune.candidate import applied  # noqa: PLC0415
    from framework.commands.tune.print_search import won  # noqa: PLC0415

    winner = None
    words = list(request.words)
    wanted = config
    if final.winner != final.default:
        winner = final.winner
        words = without_searched(words, winner.loader != final.default.loader)
        wanted = applied(config, winner, printer.search.loaders)
    parts = typed(words, request.config_dir)
    again = [f"recipes=tuned/{path.stem}", *parts.again]
    tuned_by = shlex.join(["paceline", "tune", *request.words])
    comments = [
        f"{won(final)}; tuned {time.strftime('%Y-%m-%d %H:%M')} on {_machine_name()}",
        printer.verdict,
        f"{tuned_by} budget={request.budget:g}",
    ]
    if parts.again:
        comments.append(f"give with it: {shlex.join(parts.again)}")
    text = recipe_text(parts, winner, comments)
    write_recipe(path, text, wanted, again, request.grant, request.folder)
    command = ["paceline", "train", "--config-dir", request.folder, *again]
    print(f"written: {path}; train with it:\n  {shlex.join(command)}")


def _machine_name() -> str:
    from framework.commands.tune.print_search import plural  # noqa: PLC0415
    from framework.measure.host import machine  # noqa: PLC0415

    facts = machine()
    processor = facts["processor"] or "an unnamed processor"
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    return f"{plural(facts['num_cores'], 'core')} of {processor}, {gpus}"


def _tune_batch_size(request: TuneRequest, config: Config, allowed: tuple[str, ...]) -> RunOutcome:
    from framework.commands.tune.batch_sizes import BatchSizeSearch  # noqa: PLC0415
    from framework.commands.tune.memory_guard import TrialProcess, smallest_fails  # noqa: PLC0415
    from framework.commands.tune.print_batch_sizes import print_curve, print_trial  # noqa: PLC0415
    from framework.commands.tune.print_search import print_busy  # noqa: PLC0415
    from framework.measure.host import machine, num_cores  # noqa: PLC0415

    print_busy(num_cores())
    with closing(TrialProcess(config, allowed, request.memory)) as process:
        search = BatchSizeSearch(
            process.attempt, process.num_records, config["accumulate"], request.budget
        )

        def print_known() -> Config:
            if not search.curve.fitting:
                return {}
            return print_curve(search.curve, request.words, config, process.cuda)

        words = "stopped{by}: the results so far are above; nothing was written"
        with undone(printed(print_known)), reason(words):
            for trial in search.run():
                print_trial(trial)
                if not search.curve.fitting:
                    raise smallest_fails(trial)
        curve = print_known()
    if request.output:
        write_json(Path(request.output), {"command": sys.argv, "machine": machine(), **curve})
        print(f"written: {request.output}")
    return RunOutcome(0, "tuned")
