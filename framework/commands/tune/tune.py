"""The command ``paceline tune``: search for the fastest way to read, or for the batch size."""

import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, final

from framework.cli import arguments as cli
from framework.cli.hydra_app import composed
from framework.cli.hydra_session import stamp
from framework.cli.outcome import RunOutcome, outcome_of, report_failure
from framework.cli.tables import print_table, rate
from framework.config.schema import Rule
from framework.errors import ConfigError, ResourceError, did_you_mean, say
from framework.measure.statistics import median, spread_share
from framework.system.durable import write_json
from framework.system.stopping import message_if_stopped

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
LEAST = 8  # records: where doubling starts
FINE = 16  # the largest size is known to one part in so many
NUM_TRIALS = 14  # about so many sizes are tried
NEAR = 0.97  # this share of the best rate is good enough
LONGEST = 0.25  # the share of the budget for one size
# A size is given up after PATIENCE_S at the earliest, because a busy machine may be slow. The
# smallest size, which has to run, gets FIRST_S.
PATIENCE_S = 20.0
FIRST_S = 600.0
BAR = 24  # characters

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
    grant: cli.Grant
    what: str = "reading"
    budget: float = 60.0
    name: str | None = None
    force: bool = False
    output: str | None = None
    memory: int | None = None  # bytes


def main(arguments: list[str]) -> int:
    if "--help" in arguments or "-h" in arguments:
        print(HELP)
        return 0
    request = parse(arguments)
    show_traceback = any(word.startswith("debug=") for word in request.words)
    outcome = outcome_of(partial(_tune, request), Path("outputs", stamp()), show_traceback)
    return report_failure(outcome)


def parse(arguments: Sequence[str]) -> TuneRequest:
    """Take the command line apart. A wrong word is ConfigError C104, C124, C195 or C196."""
    own, words, config_dir = cli.split_words(arguments, RULES)
    for word in words:
        if word.startswith("-"):
            name = word.split("=")[0]
            what = f"no such option{did_you_mean(name, (*cli.CONFIG_DIR, '--help', '-h'))}"
            raise ConfigError(124, name, what, "see 'paceline tune --help'")
    options = cli.read_keys(own, RULES)
    if text := options.get("memory"):
        unit = text[-1:].upper() if text[-1:].isalpha() else ""
        number = text[: len(text) - len(unit)]
        if unit not in UNITS or not number.isdecimal() or int(number) == 0:
            what = "is not an amount of memory"
            raise ConfigError(195, f"memory = {text}", what, "give bytes, or 500M, or 8G")
        options["memory"] = int(number) * UNITS[unit]
    request = TuneRequest(tuple(words), config_dir, cli.granted(list(arguments)), **options)
    ignored = {"reading": ("memory",), "batch_size": ("name", "force")}
    for key in ignored[request.what]:
        if key in own:
            problem = f"what={request.what} would ignore it"
            raise ConfigError(196, f"{key} = {own[key]}", problem, "leave it out")
    return request


def _tune(request: TuneRequest) -> RunOutcome:
    config, allowed = composed(request.words, request.grant, request.config_dir, tuple(RULES))
    if "num_processes" in config["parallel"] or "RANK" in os.environ:
        fix = "leave parallel= out, and give the share of a rank as rank_batch_size="
        raise ConfigError(196, "parallel = ddp", "tune measures one replica, in one process", fix)
    if (run := config["resume"]["run"]) is not None:
        fix = "give the words of that run"
        raise ConfigError(196, f"resume = {run}", "tune cannot continue a run", fix)
    cli.check_output(request.output, 195)
    # These load torch, which a wrong key should not have to wait for.
    if request.what == "reading":
        from framework.commands.tune.search_reading import recipe_path, tune_reading  # noqa: PLC0415

        return tune_reading(request, config, allowed, recipe_path(request))
    return tune_batch_size(request, config, allowed)


class Trial(NamedTuple):
    batch_size: int
    rates: tuple[float, ...] = ()  # records per second in each window
    step_s: float = 0.0
    peak_bytes: int = 0  # of the host's memory, or of the device's on CUDA
    why: str = ""  # the reason, if the size does not run
    memory: bool = False  # whether the reason is lack of memory
    late: bool = False  # whether the reason is that steps take too long

    @property
    def fits(self) -> bool:
        return not self.why

    @property
    def records_per_s(self) -> float:
        return median(self.rates)


Attempt = Callable[[int, float, float], Trial]  # (batch size, seconds, seconds before giving up)


@final
@dataclass
class BatchSizeSearch:
    """A search that doubles the size, and bisects for the largest that fits."""

    attempt: Attempt
    most: int  # records of an epoch
    step: int  # whose multiples are tried
    budget_s: float
    clock: Callable[[], float] = time.monotonic
    trials: dict[int, Trial] = field(default_factory=dict[int, Trial])
    bound: str = "records"  # of the largest size: memory, records (of an epoch), time or error

    @property
    def fitting(self) -> list[Trial]:
        """The trials that ran, the smallest size first."""
        return [self.trials[size] for size in sorted(self.trials) if not self.trials[size].why]

    @property
    def recommended(self) -> Trial:
        """The smallest size that is nearly as fast as the fastest."""
        best = max(trial.records_per_s for trial in self.fitting)
        return next(trial for trial in self.fitting if trial.records_per_s >= NEAR * best)

    def run(self) -> Iterator[Trial]:
        """Double, bisect, then measure the rates again. Stop if the smallest size fails."""
        end = self.clock() + self.budget_s
        seconds = 0.6 * self.budget_s / NUM_TRIALS  # the rest is for measuring all rates again
        size = min(self.most, -(-LEAST // self.step) * self.step)
        others = 0  # for example, batch normalization fails on a last batch of a single record
        while True:
            trial = self._try(size, seconds)
            yield trial
            if trial.memory:
                self.bound = "memory"
                break
            # The next size takes at least three steps of twice the time.
            if trial.late or (trial.fits and 3 * 2 * trial.step_s > LONGEST * self.budget_s):
                self.bound = "time"
                break
            others = 0 if trial.fits else others + 1
            self.bound = "records" if trial.fits else "error"
            if size == self.most or others == 2 or not self.fitting:
                break
            size = min(self.most, 2 * size)
        if not self.fitting:
            return
        if self.bound == "memory":
            good, bad = self.fitting[-1].batch_size, max(self.trials)
            while bad - good > max(self.step, good // FINE) and self.clock() < end:
                middle = max(good + self.step, (good + bad) // 2 // self.step * self.step)
                trial = self._try(middle, seconds)
                yield trial
                if trial.fits:
                    good = middle
                else:
                    bad = middle
        # Measure again, the largest size first, so that drift of the machine cancels out.
        sizes = [trial.batch_size for trial in reversed(self.fitting)]
        for number, size in enumerate(sizes):
            before = self.trials[size]
            left_s = max(0.0, end - self.clock()) / (len(sizes) - number)
            if left_s < 3 * before.step_s:
                continue
            trial = self._try(size, left_s / 2)
            if trial.fits:
                peak_bytes = max(before.peak_bytes, trial.peak_bytes)
                trial = trial._replace(rates=before.rates + trial.rates, peak_bytes=peak_bytes)
                self.trials[size] = trial
            elif trial.memory:  # other programs need memory now, so this size is not safe
                self.bound = "memory"
            yield trial

    def _try(self, size: int, seconds: float) -> Trial:
        limit_s = FIRST_S
        if self.fitting:
            limit_s = max(PATIENCE_S, LONGEST * self.budget_s) + seconds
        self.trials[size] = self.attempt(size, seconds, limit_s)
        return self.trials[size]


def tune_batch_size(request: TuneRequest, config: Config, allowed: tuple[str, ...]) -> RunOutcome:
    from framework.cli.run_ranks import pack_missing  # noqa: PLC0415  # loads torch
    from framework.commands.tune.search_reading import BURN_IN_S, print_busy  # noqa: PLC0415
    from framework.measure.host import machine  # noqa: PLC0415
    from framework.trials.trial_process import TrialProcess, TrialSetting  # noqa: PLC0415

    pack_missing(config, allowed)
    print_busy()
    key = "batch_size" if config["rank_batch_size"] is None else "rank_batch_size"
    epochs = count()
    stopped = "stopped{by}: the results so far are above; nothing was written"
    with closing(TrialProcess(request.memory or "free")) as process, message_if_stopped(stopped):
        facts = process.facts(TrialSetting(f"{key} = {config[key]}", config, allowed))

        def attempt(size: int, seconds: float, limit_s: float) -> Trial:
            setting = TrialSetting(f"{key} = {size}", {**config, key: size}, allowed)
            measured = process.measure(setting, "visit", seconds, BURN_IN_S, next(epochs), limit_s)
            if (error := measured.error) is not None:
                why = str(error.args[2] if error.args[0] == 185 else error)[:300]
                return Trial(size, why=why, memory=measured.lacks_memory, late=measured.is_late)
            return Trial(size, measured.windows, measured.step_s, measured.peak_bytes)

        search = BatchSizeSearch(attempt, facts.num_records, config["accumulate"], request.budget)
        for trial in search.run():
            result = f"no: {trial.why}"
            if trial.fits:
                result = f"{rate(trial.records_per_s)} records/s, "
                result += f"{trial.peak_bytes / (1 << 20):,.0f} MiB"
            say(f"{trial.batch_size:>8,}: {result}", sys.stderr)
            if not search.fitting:
                fix = "see that 'paceline train' runs with it"
                if trial.memory:
                    fix = "free memory, choose a smaller model, or raise memory="
                raise ResourceError(104, f"batch_size = {trial.batch_size}", trial.why, fix)
    words = [*cli.config_flags(request.config_dir), *request.words]
    curve = print_curve(search, words, config, facts.cuda)
    if request.output:
        write_json(Path(request.output), {"command": sys.argv, "machine": machine(), **curve})
        say(f"written: {request.output}")
    return RunOutcome(0, "tuned")


def print_curve(
    search: BatchSizeSearch, words: Sequence[str], config: Config, cuda: bool
) -> Config:
    """Print the table and the recommended size. Return the same as plain values."""
    key = "batch_size" if config["rank_batch_size"] is None else "rank_batch_size"
    best = search.recommended
    typed = [word for word in words if word.split("=")[0] != key]
    command = ["paceline", "train", *typed, f"{key}={best.batch_size}"]
    near = f"the smallest within {100 - 100 * NEAR:.0f} % of the best rate"
    heads = [key, "records/s", "spread", "ms a step", "GPU memory" if cuda else "memory"]
    rows: list[list[str]] = []
    fastest = max(trial.records_per_s for trial in search.fitting)
    largest = search.fitting[-1].batch_size
    trials = [search.trials[size] for size in sorted(search.trials)]
    plain: list[Config] = []
    for trial in trials:
        plain.append({**trial._asdict(), "fits": trial.fits})
        size = str(trial.batch_size)
        if trial.fits:
            step_ms = 1e3 * trial.batch_size / trial.records_per_s
            bar = "█" * max(1, round(BAR * trial.records_per_s / fastest))
            spread = spread_share(trial.rates)
            plain[-1] |= {"records_per_s": trial.records_per_s, "spread": spread}
            figures = [rate(trial.records_per_s), f"± {100 * spread:.0f} %", f"{step_ms:,.1f}"]
            rows.append([size, *figures, f"{trial.peak_bytes / (1 << 20):,.0f} MiB", bar])
            continue
        why = "too slow to try" if trial.late else "fails"
        rows.append([size, "", "", "", "", "does not fit" if trial.memory else why])
    print_table(f"the rate over {key}", [], heads, rows, [""])
    larger = next((trial for trial in trials if trial.batch_size > largest), None)
    ends = {
        "records": f"possible: {largest}, all records of an epoch in one batch; it fits",
        "time": f"that was tried: {largest}; it fits. Steps of larger ones take too long for the "
        "budget: raise budget=",
        "memory": f"that fits: {largest}" + (f"; {larger.batch_size} does not" if larger else ""),
        "error": f"that runs: {largest}; larger ones fail: {larger.why if larger else ''}",
    }
    say(f"the largest {ends[search.bound]}")
    say(f"recommended: {key}={best.batch_size}: {near}, {rate(best.records_per_s)} records/s")
    say(f"  {shlex.join(command)}")
    if best.batch_size != config[key]:
        say(f"This changes what the model learns ({key} was {config[key]}): look at optim.lr, too.")
    result = {"key": key, "largest": largest, "bound": search.bound}
    return {**result, "recommended": best.batch_size, "curve": plain}
