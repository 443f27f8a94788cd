"""Search for the fastest way to read: grids, measured in turn, then pairs against the settings."""

import os
import re
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, final

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from framework.cli.arguments import config_flags
from framework.cli.hydra_app import composed
from framework.cli.outcome import RunOutcome
from framework.cli.precedence import Composition, default_recipes
from framework.cli.run_ranks import pack_missing
from framework.cli.tables import plural, print_table, rate
from framework.commands.tune.tune import TuneRequest
from framework.errors import ConfigError, PacelineError, printable, say
from framework.measure import statistics
from framework.measure.host import machine, num_cores
from framework.measure.statistics import Pairs, median, spread_share
from framework.system.durable import write_json, write_text
from framework.system.safe_text import SafeConsole
from framework.system.stopping import message_if_stopped
from framework.system.user_code import needed
from framework.trials.trial_process import ReadFacts, TrialProcess, TrialSetting

Config = dict[str, Any]
# What a search decides.
SEARCHED = ("loader", "loader.depth", "workers.num", "workers.kind", "workers.start_method")
KEPT = 3  # so many candidates are tried with other depths
GRID = 0.3  # the share of the budget for each grid; the rest is for the pairs
LEAST_S = 0.1  # of a visit
BURN_IN_S = 0.15  # all queues are full after this time
BUSY = 0.7  # programs per core that run or wait, over the last minute


class Candidate(NamedTuple):
    num_workers: int
    kind: str  # of workers; thread if there are none
    loader: str
    depth: int  # of the loader; 0 if it has none

    @property
    def workers(self) -> Config:
        return {"num": self.num_workers, "kind": self.kind if self.num_workers else None}

    def __str__(self) -> str:
        workers = plural(self.num_workers, self.kind) if self.num_workers else "no workers"
        depth = f" depth {self.depth}" if self.depth else ""
        return f"{workers}, {self.loader}{depth}"


Measure = Callable[[Candidate, float], float]  # the rate of a candidate in so many seconds


class Grid(NamedTuple):
    title: str
    seconds: float  # of a visit
    rates: dict[Candidate, list[float]]  # the fastest first
    kept: set[Candidate]  # those that are measured further
    refused: dict[Candidate, str]  # those that cannot run, with the reason
    untried: list[Candidate]  # those for which no time was left

    def as_dict(self) -> Config:
        entries = [{**each._asdict(), "rates": rates} for each, rates in self.rates.items()]
        untried = [each._asdict() for each in self.untried]
        return {"title": self.title, "entries": entries, "untried": untried}


def present(config: Config, facts: ReadFacts, loader: str) -> Candidate:
    """Return the present settings. A user's loader, which has a dotted name, keeps its depth."""
    kind = "thread"
    if facts.num_workers:
        kind = config["workers"]["kind"] or facts.kinds[0]
    depth = 0 if "." in loader else config["loader"].get("depth", 0)
    return Candidate(facts.num_workers, kind, loader, depth)


def worker_counts(facts: ReadFacts) -> list[int]:
    """Return powers of two up to twice the cores, the cores, and 0 if the source can do without."""
    most = 2 * facts.num_cores
    if not facts.kinds:
        return [0]
    if not facts.decodes:  # two threads copy no more than one, but may read ahead
        return [num for num in (0, 1, 2) if num <= most]
    counts = {1 << bit for bit in range(most.bit_length())} | {facts.num_cores}
    if "process" in facts.kinds:  # DALI always has a thread
        counts.add(0)
    return sorted(counts)


def candidates(
    default: Candidate, facts: ReadFacts, loaders: Mapping[str, Config]
) -> list[Candidate]:
    """Return the default, then all others with the configured depth, those most similar first."""
    others: set[Candidate] = set()
    for name, block in loaders.items():
        if name == "stream" and not facts.cuda and default.loader != "stream":
            continue
        depth = default.depth if name == default.loader else block.get("depth", 0)
        for num in worker_counts(facts):
            kinds = facts.kinds if num else ("thread",)
            others |= {Candidate(num, kind, name, depth) for kind in kinds}
    return [default, *sorted(others - {default}, key=lambda each: preference(each, default))]


def whole_grid(chosen: Sequence[Candidate]) -> list[Candidate]:
    """Return each candidate, followed by itself with all other depths if its loader has one."""
    grid: list[Candidate] = []
    for candidate in chosen:
        grid.append(candidate)
        if candidate.depth:
            grid += [candidate._replace(depth=depth) for depth in (1, 2, 4, 8)]
    return list(dict.fromkeys(grid))


def preference(candidate: Candidate, default: Candidate) -> tuple[Any, ...]:
    """Return a sort key that prefers few changes, threads, few workers and little read ahead."""
    changes = sum(mine != its for mine, its in zip(candidate, default, strict=True))
    is_process = candidate.kind != "thread"
    return changes, is_process, candidate.num_workers, candidate.depth, candidate.loader


def applied(config: Config, candidate: Candidate, loaders: Mapping[str, Config]) -> Config:
    loader = dict(loaders[candidate.loader])
    if candidate.depth:
        loader["depth"] = candidate.depth
    workers = {**config["workers"], **candidate.workers}
    if candidate.kind != "process":
        workers["start_method"] = None  # threads have none
    return {**config, "workers": workers, "loader": loader}


@final
@dataclass
class ReadingSearch:
    """A search over ``candidates``, the present settings first, within ``budget_s`` seconds."""

    candidates: Sequence[Candidate]
    measure: Measure
    budget_s: float
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.default = self.candidates[0]
        self.end = self.clock() + self.budget_s
        self.challenger: Candidate | None = None  # the simplest of the fastest others
        self._overheads_s: deque[float] = deque(maxlen=9)  # of recent visits

    def grids(self) -> Iterator[Grid]:
        self._visit(self.default, LEAST_S)  # the first visit is cold and does not count
        grid = self._grid("all", self.candidates)
        kept = {self.default, *list(grid.rates)[:KEPT]}
        yield grid._replace(kept=kept)
        best = [candidate for candidate in grid.rates if candidate in kept]
        deeper = whole_grid(list(dict.fromkeys([self.default, *best])))
        if len(deeper) > 1:
            yield self._grid("the best, with other depths", deeper)

    def final(self) -> Pairs | None:
        """Compare the best with the present settings in pairs, if there is one, and time."""
        pair_s = (self.end - self.clock()) / 2
        num_pairs = min(10, int(pair_s / (self._overhead_s + LEAST_S)))
        if self.challenger is None or num_pairs < 1:
            return None
        sides = (self.default, self.challenger)
        seconds = max(LEAST_S, pair_s / num_pairs - self._overhead_s)
        return statistics.take_turns(lambda side: self._visit(sides[side], seconds), num_pairs)

    @property
    def _overhead_s(self) -> float:
        """How much longer recent visits took than planned: parts are built, steps may be long."""
        return median(self._overheads_s)

    def _visit(self, candidate: Candidate, seconds: float) -> float:
        start = self.clock()
        records_per_s = self.measure(candidate, seconds)
        self._overheads_s.append(max(0.0, self.clock() - start - seconds))
        return records_per_s

    def _grid(self, title: str, tried: Sequence[Candidate]) -> Grid:
        share_s = GRID * self.budget_s
        until = self.clock() + share_s
        each_s = share_s / len(tried)
        # Several short visits see more of what disturbs the machine for a while.
        passes = max(1, min(4, int(each_s / (self._overhead_s + 0.3))))
        seconds = max(LEAST_S, each_s / passes - self._overhead_s)
        known: dict[Candidate, list[float]] = {}
        refused: dict[Candidate, str] = {}
        for number in range(passes):
            # The present settings come first, because every grid needs them.
            for candidate in tried if number % 2 == 0 else tried[::-1]:
                is_late = self.clock() > until + seconds and len(known) > 1
                if is_late or candidate in refused:
                    continue
                try:
                    known.setdefault(candidate, []).append(self._visit(candidate, seconds))
                except PacelineError as error:
                    if candidate == self.default:
                        raise
                    del known[candidate]
                    refused[candidate] = str(error)
        medians = {candidate: median(rates) for candidate, rates in known.items()}
        rates = {each: known[each] for each in sorted(medians, key=lambda each: -medians[each])}
        del medians[self.default]
        self.challenger = None
        if medians:
            least = 0.98 * max(medians.values())  # nearly as fast is equal, and the simpler wins
            fast = [candidate for candidate in medians if medians[candidate] >= least]
            self.challenger = min(fast, key=lambda each: preference(each, self.default))
        kept = {self.default, self.challenger or self.default}
        untried = [each for each in tried if each not in rates and each not in refused]
        return Grid(title, seconds, rates, kept, refused, untried)


def tune_reading(
    request: TuneRequest, config: Config, allowed: tuple[str, ...], path: Path
) -> RunOutcome:
    pack_missing(config, allowed)
    needed("scipy", "stats")  # for the verdict, which comes after minutes of measuring
    loaders: dict[str, Config] = {}
    refused: dict[str, str] = {}
    others = without_searched(request.words, loader_changed=True)
    for name in ("plain", "prefetch", "stream"):
        try:
            made, _ = composed([*others, f"loader={name}"], request.grant, request.config_dir)
            loaders[name] = made["loader"]
        except ConfigError as error:
            refused[name] = str(error)
    target = config["loader"]["_target_"]
    # A loader of the user goes by its target.
    loader = next((each for each in loaders if loaders[each]["_target_"] == target), target)
    loaders[loader] = config["loader"]
    grids: list[Grid] = []
    with closing(TrialProcess()) as process, message_if_stopped("stopped{by}: nothing was written"):
        facts = process.facts(TrialSetting("paceline tune", config, allowed))
        default = present(config, facts, loader)
        tried = candidates(default, facts, loaders)
        measure = measure_in(process, config, allowed, default, loaders)
        search = ReadingSearch(tried, measure, request.budget)
        many = f"{plural(len(tried), 'candidate')}, {plural(facts.num_cores, 'core')}"
        say(f"{many}, {request.budget:g} s; as configured: {default}")
        if not facts.kinds:
            say("not tried: workers; there is nothing to read")
        elif facts.kinds == ("thread",) and not facts.decodes:
            why = "these records are only copied, and handing them over costs more"
            say(f"not tried: processes; {why}")
        if not facts.cuda:
            refused["stream"] = "without CUDA it does the same as prefetch"
        for name, why in refused.items():
            say(f"not tried: loader={name}; {why}")
        print_busy()
        with SafeConsole(stderr=True).status("measuring") as status:
            for grid in search.grids():
                status.stop()
                grids.append(grid)
                _print_grid(grid, default, len(grids))
                status.start()
            pairs = search.final()
    challenger = search.challenger
    words = verdict(default, challenger, pairs)
    say(f"final: {words}")
    winner = challenger if pairs is not None and pairs.is_won else None
    _write_recipe(request, path, default, winner, words)
    if request.output:
        figures = {
            "command": sys.argv,
            "machine": machine(),
            "recipe": str(path),
            "grids": [grid.as_dict() for grid in grids],
            "default": default._asdict(),
            "challenger": challenger and challenger._asdict(),
            "winner": (winner or default)._asdict(),
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
    """Return what measures a candidate in a process, on records that no visit before it read."""
    epochs = count()

    def measure(candidate: Candidate, seconds: float) -> float:
        wanted = config if candidate == default else applied(config, candidate, loaders)
        setting = TrialSetting(str(candidate), wanted, allowed)
        measured = process.measure(setting, "visit", seconds, BURN_IN_S, next(epochs))
        if measured.error is not None:
            raise measured.error
        return measured.records_per_s

    return measure


def without_searched(words: Sequence[str], loader_changed: bool) -> list[str]:
    """Return ``words`` without what a search decides, and without all keys of a changed loader."""
    kept: list[str] = []
    for word in words:
        key = word.lstrip("+~").split("=")[0]
        if key not in SEARCHED and not (loader_changed and key.startswith("loader.")):
            kept.append(word)
    return kept


def print_busy() -> None:
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


def verdict(default: Candidate, challenger: Candidate | None, pairs: Pairs | None) -> str:
    if challenger is None:
        return f"nothing else is possible here; as configured: {default}"
    as_configured = f"as configured ({default})"
    if pairs is None:
        return f"{as_configured}; no time was left to compare {challenger}: raise budget="
    low, high = pairs.quartiles
    sign = "faster" if pairs.gain >= 1 else "slower"
    tested = f"{len(pairs.before)} pairs, p = {pairs.chance:.2g}"
    difference = f"{challenger} is {abs(100 * pairs.gain - 100):.1f} % {sign} "
    difference += f"(quartiles {_percent(low)} to {_percent(high)}, {tested})"
    if pairs.is_won:
        rates = f"{rate(median(pairs.after))} records/s instead of {rate(median(pairs.before))}"
        return f"{difference} than {as_configured}: {rates}"
    if len(pairs.before) < statistics.LEAST_PAIRS and pairs.gain >= statistics.LEAST_GAIN:
        why = f"fewer than {statistics.LEAST_PAIRS} pairs cannot prove: raise budget="
        return f"{as_configured}; {difference}, which {why}"
    least = 100 * statistics.LEAST_GAIN - 100
    return f"{as_configured}; {difference}: less than {least:.0f} %, or no more than chance"


def _percent(ratio: float) -> str:
    return f"{100 * ratio - 100:+.1f} %"


def base_recipes(words: Sequence[str]) -> list[str]:
    """Return the recipes that ``train`` uses with these words."""
    bases = [] if Composition("train", words).without_recipe else default_recipes()
    for override in OverridesParser.create().parse_overrides(list(words)):
        if override.key_or_group == "recipes":
            value: Any = override.value() or []
            bases = [value] if isinstance(value, str) else value
    return bases


def recipe_path(request: TuneRequest) -> Path:
    """Return the path of the recipe to write. ConfigError C197 if it exists or has no such name."""
    bases = base_recipes(request.words)
    name = request.name or ["defaults", *bases][-1].split("/")[-1]
    where = f"name = {name[:100]}"
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
        fix = "give up to 100 letters, digits, dots, dashes"
        raise ConfigError(197, where, "cannot be the name of a recipe", fix)
    if f"tuned/{name}" in bases:
        raise ConfigError(197, where, "the recipe would contain itself", "give another name=")
    path = Path(request.config_dir or ".", "recipes", "tuned", f"{name}.yaml")
    if path.exists() and not request.force:
        fix = "give another name=, or force=true to replace it"
        raise ConfigError(197, str(path), "exists already", fix)
    return path


def recipe(bases: Sequence[str], winner: Candidate | None, comments: Sequence[str]) -> str:
    """Return the YAML of a recipe: its bases, and what was decided (None: as configured)."""
    defaults: list[Any] = [*(f"/recipes/{base}" for base in bases), "_self_"]
    content: Config = {"defaults": defaults}
    if winner is not None:
        defaults.append({"override /loader": winner.loader})
        content["workers"] = {**winner.workers, "start_method": None}
        if winner.depth:
            content["loader"] = {"depth": winner.depth}
    notes = "".join(f"# {printable(comment)}\n" for comment in comments)
    return f"# @package _global_\n{notes}{OmegaConf.to_yaml(OmegaConf.create(content))}"


def _write_recipe(
    request: TuneRequest, path: Path, default: Candidate, winner: Candidate | None, won: str
) -> None:
    words = list(request.words)
    if winner is not None:
        words = without_searched(words, winner.loader != default.loader)
    again = [f"recipes=tuned/{path.stem}"]
    again += [word for word in words if not word.startswith("recipes=")]
    command = shlex.join(["paceline", "train", "--config-dir", request.config_dir or ".", *again])
    facts = machine()
    processor = facts["processor"] or "an unnamed processor"
    gpus = ", ".join(facts["gpus"]) or "no GPU"
    tuned_by = ["paceline", "tune", *config_flags(request.config_dir), *request.words]
    place = f"{plural(facts['num_cores'], 'core')} of {processor}, {gpus}"
    comments = [
        f"tuned {time.strftime('%Y-%m-%d %H:%M')} on {place}",
        won,
        f"{shlex.join(tuned_by)} budget={request.budget:g}",
        f"train with it: {command}",
    ]
    write_text(path, recipe(base_recipes(request.words), winner, comments))
    say(f"written: {path}; train with it:\n  {command}")
