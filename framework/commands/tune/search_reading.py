"""Search for the fastest way to read: a grid, measured in turn, and a final against the settings.

All candidates are measured, then the best of them with other depths. The best of these is compared
with the present settings in pairs. ``measure(candidate, seconds)`` returns a rate, so that tests
need no training.
"""

import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from framework.cli.compose_config import composed
from framework.cli.outcome import RunOutcome
from framework.cli.own_keys import config_flags
from framework.cli.print_table import print_table
from framework.cli.progress import pack_missing
from framework.cli.units import plural, rate
from framework.commands.tune.candidate import (
    Candidate,
    applied,
    candidates,
    preference,
    present,
    whole_grid,
)
from framework.commands.tune.recipe_writer import recipe_text, typed, without_searched, write_recipe
from framework.errors import ConfigError, PacelineError, say
from framework.measure.host import machine, num_cores
from framework.measure.statistics import (
    LEAST_GAIN,
    LEAST_PAIRS,
    Pairs,
    median,
    spread_share,
    take_turns,
)
from framework.system.durable import write_json
from framework.system.extras import needed
from framework.system.safe_text import SafeConsole
from framework.system.stopping import message_if_stopped, printed, undone
from framework.trials.trial_process import ReadFacts, TrialProcess, TrialSetting

if TYPE_CHECKING:
    from framework.commands.tune.tune import TuneRequest

Config = dict[str, Any]
Measure = Callable[[Candidate, float], float]
LOADERS = ("plain", "prefetch", "stream")
KEPT = 3  # so many candidates are tried with other depths
EQUAL = 0.02  # rates that differ by a smaller share are equal, and the simpler candidate wins
GRID = 0.3  # the share of the budget for each grid; the rest is for the pairs
NUM_PAIRS = 10
LEAST_S = 0.1  # of a visit
GOOD_S = 0.3
BURN_IN_S = 0.15  # all queues are full after this time
BUSY = 0.7  # programs per core that run or wait, over the last minute
RECENT = 9  # visits whose overhead is remembered
MOST_PASSES = 4  # over the candidates of a grid


class Grid(NamedTuple):
    """Candidates that were measured in turn.

    Attributes:
        title: What they are.
        seconds: The time of a visit.
        rates: The rates of each, the fastest first.
        kept: Those that are measured further.
        refused: Those that cannot run, with the reason.
        untried: Those for which no time was left.
    """

    title: str
    seconds: float
    rates: dict[Candidate, list[float]]
    kept: set[Candidate]
    refused: dict[Candidate, str]
    untried: list[Candidate]


class Final(NamedTuple):
    default: Candidate
    challenger: Candidate | None  # None: nothing to compare
    pairs: Pairs | None  # None: no time for any

    @property
    def winner(self) -> Candidate:
        """The challenger if it is proved faster, else the present settings."""
        if self.challenger is not None and self.pairs is not None and self.pairs.is_won:
            return self.challenger
        return self.default


@final
class ReadingSearch:
    """A search over ``candidates``, the present settings first, within ``budget_s`` seconds."""

    def __init__(
        self,
        candidates: Sequence[Candidate],
        measure: Measure,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.default = candidates[0]
        self.candidates = list(candidates)
        self.measure = measure
        self.clock = clock
        self.budget_s = budget_s
        self.end = clock() + budget_s
        self.rates: dict[Candidate, list[float]] = {}  # of this grid
        self.before: dict[Candidate, list[float]] = {}  # of the grid before it
        self._overheads_s: deque[float] = deque(maxlen=RECENT)

    def grids(self) -> Iterator[Grid]:
        """Measure and yield grid by grid."""
        self._visit(self.default, LEAST_S)  # the first visit is cold and does not count
        grid = self._grid("all", self.candidates)
        yield grid
        kept = [candidate for candidate in grid.rates if candidate in grid.kept]
        deeper = whole_grid(list(dict.fromkeys([self.default, *kept])))
        if len(deeper) > 1:
            yield self._grid("the best, with other depths", deeper)

    def final(self) -> Final:
        """Compare the best with the present settings in pairs, until the budget is used up."""
        challenger = self._challenger()
        if challenger is None:
            return Final(self.default, None, None)
        sides = (self.default, challenger)
        pair_s = (self.end - self.clock()) / 2
        num_pairs = min(NUM_PAIRS, int(pair_s / (self.overhead_s + LEAST_S)))
        if num_pairs < 1:
            return Final(self.default, challenger, None)
        seconds = max(LEAST_S, pair_s / num_pairs - self.overhead_s)
        pairs = take_turns(lambda side: self._visit(sides[side], seconds), num_pairs)
        return Final(self.default, challenger, pairs)

    def best_so_far(self) -> tuple[Candidate, float] | None:
        """Return the fastest candidate and its rate over that of the present settings, if known."""
        for rates in (self.rates, self.before):
            if len(rates) > 1 and self.default in rates:
                best = max(rates, key=lambda candidate: median(rates[candidate]))
                return best, median(rates[best]) / median(rates[self.default])
        return None

    @property
    def overhead_s(self) -> float:
        """How much longer recent visits took than planned: parts are built, steps may be long."""
        return median(self._overheads_s)

    def _visit(self, candidate: Candidate, seconds: float) -> float:
        start = self.clock()
        rate = self.measure(candidate, seconds)
        self._overheads_s.append(max(0.0, self.clock() - start - seconds))
        return rate

    def _grid(self, title: str, tried: Sequence[Candidate]) -> Grid:
        """Measure candidates in turn, forwards and backwards, for the share of a grid."""
        share_s = GRID * self.budget_s
        until = self.clock() + share_s
        each_s = share_s / len(tried)
        # Several short visits see more of what disturbs the machine for a while.
        passes = max(1, min(MOST_PASSES, int(each_s / (self.overhead_s + GOOD_S))))
        seconds = max(LEAST_S, each_s / passes - self.overhead_s)
        self.before = self.rates
        self.rates = {}
        refused: dict[Candidate, str] = {}
        for number in range(passes):
            # The present settings come first, because every grid needs them.
            for candidate in tried if number % 2 == 0 else tried[::-1]:
                is_late = self.clock() > until + seconds and len(self.rates) > 1
                if is_late or candidate in refused:
                    continue
                try:
                    rate = self._visit(candidate, seconds)
                    self.rates.setdefault(candidate, []).append(rate)
                except PacelineError as error:
                    if candidate == self.default:
                        raise
                    self.rates.pop(candidate, None)
                    refused[candidate] = str(error)
        order = sorted(self.rates, key=lambda candidate: -median(self.rates[candidate]))
        kept = {self.default, *order[:KEPT]}
        if tried != self.candidates:
            kept = {self.default, self._challenger() or self.default}
        rates = {candidate: self.rates[candidate] for candidate in order}
        untried = [each for each in tried if each not in rates and each not in refused]
        return Grid(title, seconds, rates, kept, refused, untried)

    def _challenger(self) -> Candidate | None:
        """Return the simplest of the fastest candidates, apart from the present settings."""
        medians = {each: median(rates) for each, rates in self.rates.items()}
        medians.pop(self.default, None)
        if not medians:
            return None
        least = (1 - EQUAL) * max(medians.values())
        fast = [candidate for candidate in medians if medians[candidate] >= least]
        return min(fast, key=lambda candidate: preference(candidate, self.default))


def tune_reading(
    request: "TuneRequest", config: Config, allowed: tuple[str, ...], path: Path
) -> RunOutcome:
    """Search, print every grid, and write the recipe to ``path``."""
    pack_missing(config, allowed)
    needed("scipy", "stats")  # for the verdict, which comes after minutes of measuring
    loaders, refused = _loaders(request)
    target = config["loader"]["_target_"]
    # A loader of the user goes by its target.
    loader = next((each for each in loaders if loaders[each]["_target_"] == target), target)
    loaders[loader] = config["loader"]
    with closing(TrialProcess()) as process:
        facts = process.facts(TrialSetting("paceline tune", config, allowed))
        default = present(config, facts, loader)
        tried = candidates(default, facts, loaders)
        measure = measure_in(process, config, allowed, default, loaders)
        search = ReadingSearch(tried, measure, request.budget)
        stopped = printed(lambda: _print_stopped(search))
        with undone(stopped), message_if_stopped("stopped{by}: nothing was written"):
            _print_plan(tried, facts, request.budget, refused)
            grids: list[Grid] = []
            status = SafeConsole(stderr=True).status("measuring")
            with status:
                for grid in search.grids():
                    status.stop()
                    grids.append(grid)
                    _print_grid(grid, default, len(grids))
                    status.start()
                final = search.final()
            say(f"final: {verdict(final)}")
    _keep(request, config, path, loaders, final)
    if request.output:
        pairs = final.pairs
        plain_grids: list[Config] = []
        for grid in grids:
            entries = [{**each._asdict(), "rates": grid.rates[each]} for each in grid.rates]
            untried = [each._asdict() for each in grid.untried]
            plain_grids.append({"title": grid.title, "entries": entries, "untried": untried})
        figures = {
            "command": sys.argv,
            "machine": machine(),
            "recipe": str(path),
            "grids": plain_grids,
            "default": default._asdict(),
            "challenger": final.challenger and final.challenger._asdict(),
            "winner": final.winner._asdict(),
            "pairs": pairs and list(zip(pairs.before, pairs.after, strict=True)),
        }
        write_json(Path(request.output), figures)
    return RunOutcome(0, "tuned")


def measure_in(
    process: TrialProcess,
    config: Config,
    allowed: tuple[str, ...],
    default: Candidate,
    loaders: Mapping[str, Config],
) -> Measure:
    """Return what measures a candidate in a process, on records that no visit before it read.

    ``config`` has the settings ``default``. ``loaders`` are the configurations of loaders by name.
    """
    epochs = count()

    def measure(candidate: Candidate, seconds: float) -> float:
        wanted = config if candidate == default else applied(config, candidate, loaders)
        setting = TrialSetting(str(candidate), wanted, allowed)
        measured = process.measure(setting, "visit", seconds, BURN_IN_S, next(epochs))
        if measured.error is not None:
            raise measured.error
        return measured.records_per_s

    return measure


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


def _print_plan(
    tried: Sequence[Candidate], facts: ReadFacts, budget_s: float, refused: Mapping[str, str]
) -> None:
    many = f"{plural(len(tried), 'candidate')}, {plural(facts.num_cores, 'core')}"
    say(f"{many}, {budget_s:g} s; as configured: {tried[0]}")
    if not facts.kinds:
        say("not tried: workers; there is nothing to read")
    elif facts.kinds == ("thread",) and not facts.decodes:
        why = "these records are only copied, and handing them over costs more"
        say(f"not tried: processes; {why}")
    if not facts.cuda:
        say("not tried: loader=stream; without CUDA it does the same as prefetch")
    for name, why in refused.items():
        say(f"not tried: loader={name}; {why}")
    print_busy()


def print_busy() -> None:
    """Print a note if other programs use this machine."""
    load = os.getloadavg()[0]
    if load > BUSY * num_cores():
        what = "the results may differ when they have ended"
        say(f"note: other programs use this machine (load {load:.1f}): {what}")


def _print_grid(grid: Grid, default: Candidate, number: int) -> None:
    rows: list[list[str]] = []
    for candidate, rates in grid.rates.items():
        row = [str(candidate), rate(median(rates)), f"± {100 * spread_share(rates):.0f} %", ""]
        if candidate == default:
            row[0] += " (as configured)"
        else:
            row[3] = _percent(median(rates) / median(grid.rates[default]))
        rows.append([*row, "stays" if candidate in grid.kept else ""])
    size = f"{plural(len(rows), 'candidate')}, {grid.seconds:.2g} s each time"
    heads = ["records/s", "spread", "beside"]
    print_table(f"grid {number}: {grid.title}; {size}", ["candidate"], heads, rows, [""])
    for candidate, why in grid.refused.items():
        say(f"not possible: {candidate}: {why}")
    if grid.untried:
        many = plural(len(grid.untried), "candidate")
        say(f"no time was left for {many}: raise budget= to try all")
    sys.stdout.flush()  # a pipe shows each grid as soon as it is done


def _print_stopped(search: ReadingSearch) -> None:
    """Print the best candidate so far, without the console, which may be printing itself."""
    best = search.best_so_far()
    if best is None:
        say("stopped before anything could be compared")
        return
    candidate, ratio = best
    words = f"{candidate} (as configured)"
    if candidate != search.default:
        words = f"{candidate}, {_percent(ratio)}: {' '.join(candidate.words)}"
    say(f"stopped; the fastest so far, not proved: {words}")


def verdict(final: Final) -> str:
    """Return the result of the pairs in a line."""
    if final.challenger is None:
        return f"nothing else is possible here; as configured: {final.default}"
    as_configured = f"as configured ({final.default})"
    pairs = final.pairs
    if pairs is None:
        return f"{as_configured}; no time was left to compare {final.challenger}: raise budget="
    low, high = pairs.quartiles
    sign = "faster" if pairs.gain >= 1 else "slower"
    details = f"quartiles {_percent(low)} to {_percent(high)}, {len(pairs.before)} pairs"
    difference = f"{final.challenger} is {abs(100 * pairs.gain - 100):.1f} % {sign}"
    difference += f" ({details}, p = {pairs.chance:.2g})"
    if len(pairs.before) < LEAST_PAIRS and pairs.gain >= LEAST_GAIN:
        why = f"fewer than {LEAST_PAIRS} pairs cannot prove: raise budget="
        return f"{as_configured}; {difference}, which {why}"
    if not pairs.is_won:
        least = 100 * LEAST_GAIN - 100
        return f"{as_configured}; {difference}: less than {least:.0f} %, or no more than chance"
    rates = f"{rate(median(pairs.after))} records/s instead of {rate(median(pairs.before))}"
    return f"{difference} than {as_configured}: {rates}"


def _percent(ratio: float) -> str:
    return f"{100 * ratio - 100:+.1f} %"


def _keep(
    request: "TuneRequest",
    config: Config,
    path: Path,
    loaders: Mapping[str, Config],
    final: Final,
) -> None:
    """Write the recipe, and print how to use it."""
    winner = None
    words = list(request.words)
    wanted = config
    won = "as configured; nothing was proved faster"
    if final.winner != final.default and final.pairs is not None:
        winner = final.winner
        words = without_searched(words, winner.loader != final.default.loader)
        wanted = applied(config, winner, loaders)
        won = f"{100 * final.pairs.gain - 100:.0f} % faster"
    parts = typed(words, request.config_dir)
    again = [f"recipes=tuned/{path.stem}", *parts.again]
    tuned_by = ["paceline", "tune", *config_flags(request.config_dir), *request.words]
    facts = machine()
    processor = facts["processor"] or "an unnamed processor"
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    place = f"{plural(facts['num_cores'], 'core')} of {processor}, {gpus}"
    comments = [
        f"{won}; tuned {time.strftime('%Y-%m-%d %H:%M')} on {place}",
        verdict(final),
        f"{shlex.join(tuned_by)} budget={request.budget:g}",
    ]
    if parts.again:
        comments.append(f"give with it: {shlex.join(parts.again)}")
    text = recipe_text(parts, winner, comments)
    write_recipe(path, text, wanted, again, request.grant, request.folder)
    command = ["paceline", "train", "--config-dir", request.folder, *again]
    say(f"written: {path}; train with it:\n  {shlex.join(command)}")
