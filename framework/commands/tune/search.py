"""Search over the choices about reading, on a configured run, and write the best as a recipe."""

import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch

from framework.cli.compose_config import composed
from framework.cli.outcome import RunOutcome
from framework.cli.own_keys import config_flags
from framework.cli.progress import pack_missing
from framework.cli.units import plural
from framework.commands.tune.candidate import Candidate, applied, candidates, facts_of, present
from framework.commands.tune.halving import Climb, Final, Rung
from framework.commands.tune.print_search import SearchPrinter, won
from framework.commands.tune.recipe_writer import recipe_text, typed, without_searched, write_recipe
from framework.errors import ConfigError, say
from framework.measure.host import cores_per_rank, machine, threads_per_rank
from framework.system.durable import write_json
from framework.system.extras import needed
from framework.system.stopping import message_if_stopped, printed, undone
from framework.trials.probe import Probe, visit

if TYPE_CHECKING:
    from framework.commands.tune.tune import TuneRequest

Config = dict[str, Any]
LOADERS = ("plain", "prefetch", "stream")


@final
class Search:
    """A search that raises what a run would raise.

    ``config`` are the present settings, with the loader called ``loader``. ``loaders`` are the
    configurations of all loaders that compose with the run, by name.
    """

    def __init__(
        self, config: Config, allowed: Sequence[str], loaders: Mapping[str, Config], loader: str
    ) -> None:
        self.config = config
        self.allowed = allowed
        self.loaders = {**loaders, loader: config["loader"]}
        with closing(Probe(config, allowed)) as probe:
            self.facts = facts_of(probe.assembly, cores_per_rank())
        self.candidates = candidates(present(config, self.facts, loader), self.facts, self.loaders)
        self.climb: Climb | None = None
        self._epochs = count()

    def measure(self, candidate: Candidate, seconds: float) -> float:
        """Return records per second, on records that the last visit did not read."""
        config = self.config
        if candidate != self.candidates[0]:
            config = applied(config, candidate, self.loaders)
        return visit(config, self.allowed, next(self._epochs), seconds).rate

    def rungs(self, budget_s: float) -> Iterator[Rung | Final]:
        self.climb = Climb(self.candidates, self.measure, budget_s)
        return self.climb.rungs()


def tune_reading(
    request: "TuneRequest", config: Config, allowed: tuple[str, ...], path: Path
) -> RunOutcome:
    """Search, print every rung, and write the recipe."""
    pack_missing(config, allowed)
    needed("scipy", "stats")  # for the verdict, which comes after minutes of measuring
    torch.set_num_threads(threads_per_rank())  # as a run does
    loaders, refused = _loaders(request)
    search = Search(config, allowed, loaders, _name_in(loaders, config["loader"]))
    printer = SearchPrinter(search, refused)
    with undone(printed(printer.stopped)), message_if_stopped("stopped{by}: nothing was written"):
        printer.begin(request.budget)
        final = printer.climb(request.budget)
    _keep(request, config, path, printer, final)
    if request.output:
        facts = {"command": sys.argv, "machine": machine(), **printer.measured, "recipe": str(path)}
        write_json(Path(request.output), facts)
    return RunOutcome(0, "tuned")


def _loaders(request: "TuneRequest") -> tuple[dict[str, Config], dict[str, str]]:
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


def _name_in(loaders: Mapping[str, Config], own: Config) -> str:
    """Return the name of a run's own loader. A loader of the user goes by its target."""
    target = own["_target_"]
    return next((name for name in loaders if loaders[name]["_target_"] == target), target)


def _keep(
    request: "TuneRequest", config: Config, path: Path, printer: SearchPrinter, final: Final
) -> None:
    """Write the recipe, and print how to use it."""
    winner = None
    words = list(request.words)
    wanted = config
    if final.winner != final.default:
        winner = final.winner
        words = without_searched(words, winner.loader != final.default.loader)
        wanted = applied(config, winner, printer.search.loaders)
    parts = typed(words, request.config_dir)
    again = [f"recipes=tuned/{path.stem}", *parts.again]
    flags = config_flags(request.config_dir)
    tuned_by = shlex.join(["paceline", "tune", *flags, *request.words])
    facts = machine()
    cores = (
        f"{plural(facts['num_cores'], 'core')} of {facts['processor'] or 'an unnamed processor'}"
    )
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    comments = [
        f"{won(final)}; tuned {time.strftime('%Y-%m-%d %H:%M')} on {cores}, {gpus}",
        printer.verdict,
        f"{tuned_by} budget={request.budget:g}",
    ]
    if parts.again:
        comments.append(f"give with it: {shlex.join(parts.again)}")
    text = recipe_text(parts, winner, comments)
    write_recipe(path, text, wanted, again, request.grant, request.folder)
    command = ["paceline", "train", "--config-dir", request.folder, *again]
    say(f"written: {path}; train with it:\n  {shlex.join(command)}")
