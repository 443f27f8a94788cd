"""Search for the largest batch that fits, and measure the rate over the batch size.

The search doubles, then bisects. ``attempt`` trains, so that tests need no training.
"""

import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

from framework.cli.arguments import config_flags
from framework.cli.outcome import RunOutcome
from framework.cli.progress import pack_missing
from framework.cli.tables import print_table, rate
from framework.commands.tune.search_reading import BURN_IN_S, print_busy
from framework.errors import ResourceError, say
from framework.measure.host import machine
from framework.measure.statistics import median, spread_share
from framework.system.durable import write_json
from framework.system.stopping import message_if_stopped
from framework.trials.trial_process import TrialProcess, TrialSetting

if TYPE_CHECKING:
    from framework.commands.tune.tune import TuneRequest

Config = dict[str, Any]
LEAST = 8  # records: where doubling starts
FINE = 16  # the largest size is known to one part in so many
NUM_TRIALS = 14  # about so many sizes are tried
SECOND_LOOK = 0.4  # the share of the budget for measuring all rates again
NEAR = 0.97  # this share of the best rate is good enough
LONGEST = 0.25  # the share of the budget for one size
# A size is given up after PATIENCE_S at the earliest, because a busy machine may be slow. The
# smallest size, which has to run, gets FIRST_S.
PATIENCE_S = 20.0
FIRST_S = 600.0
MOST_OTHERS = 2  # failures in sequence for reasons other than memory
BAR = 24  # characters


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


@dataclass(frozen=True)
class SpeedCurve:
    trials: tuple[Trial, ...]  # the smallest size first
    bound: str  # of the largest size: memory, records (of an epoch), time or error

    @property
    def fitting(self) -> list[Trial]:
        return [trial for trial in self.trials if trial.fits]

    @property
    def largest(self) -> Trial:
        return self.fitting[-1]

    @property
    def recommended(self) -> Trial:
        """The smallest size that is nearly as fast as the fastest."""
        best = max(trial.records_per_s for trial in self.fitting)
        return next(trial for trial in self.fitting if trial.records_per_s >= NEAR * best)


@final
class BatchSizeSearch:
    """A search within ``budget_s`` seconds.

    ``attempt`` trains with a batch size: a multiple of ``step``, and at most ``most``, which is the
    number of records of an epoch. ``clock`` returns the present time in seconds.
    """

    def __init__(
        self,
        attempt: Attempt,
        most: int,
        step: int,
        budget_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.attempt = attempt
        self.most = most
        self.step = step
        self.budget_s = budget_s
        self.clock = clock
        self.end = clock() + budget_s
        self.trials: dict[int, Trial] = {}
        self.bound = "records"

    @property
    def curve(self) -> SpeedCurve:
        return SpeedCurve(tuple(self.trials[size] for size in sorted(self.trials)), self.bound)

    def run(self) -> Iterator[Trial]:
        """Double, bisect, then measure the rates again. Stop if the smallest size fails."""
        seconds = (1 - SECOND_LOOK) * self.budget_s / NUM_TRIALS
        yield from self._double(seconds)
        fitting = self.curve.fitting
        if not fitting:
            return
        if self.bound == "memory":
            good = fitting[-1].batch_size
            bad = max(self.trials)
            while bad - good > max(self.step, good // FINE) and self.clock() < self.end:
                middle = max(good + self.step, (good + bad) // 2 // self.step * self.step)
                trial = self._try(middle, seconds)
                yield trial
                if trial.fits:
                    good = middle
                else:
                    bad = middle
        # Measure again, the largest size first, so that drift of the machine cancels out.
        sizes = [trial.batch_size for trial in reversed(self.curve.fitting)]
        for number, size in enumerate(sizes):
            before = self.trials[size]
            left_s = max(0.0, self.end - self.clock()) / (len(sizes) - number)
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

    def _double(self, seconds: float) -> Iterator[Trial]:
        """Double until a size does not run or takes too long, and note the bound."""
        size = min(self.most, -(-LEAST // self.step) * self.step)
        others = 0  # for example, batch normalization fails on a last batch of a single record
        while True:
            trial = self._try(size, seconds)
            yield trial
            # The next size takes at least three steps of twice the time.
            too_slow = trial.fits and 3 * 2 * trial.step_s > LONGEST * self.budget_s
            if trial.memory:
                self.bound = "memory"
                return
            if trial.late or too_slow:
                self.bound = "time"
                return
            others = 0 if trial.fits else others + 1
            self.bound = "records" if trial.fits else "error"
            if size == self.most or others == MOST_OTHERS or not self.curve.fitting:
                return
            size = min(self.most, 2 * size)

    def _try(self, size: int, seconds: float) -> Trial:
        limit_s = FIRST_S
        if self.curve.fitting:
            limit_s = max(PATIENCE_S, LONGEST * self.budget_s) + seconds
        self.trials[size] = self.attempt(size, seconds, limit_s)
        return self.trials[size]


def tune_batch_size(request: "TuneRequest", config: Config, allowed: tuple[str, ...]) -> RunOutcome:
    """Search, and print every trial and the curve."""
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
            if measured.error is not None:
                error = measured.error
                why = str(error.args[2] if error.args[0] == 185 else error)[:300]
                return Trial(size, why=why, memory=measured.lacks_memory, late=measured.is_late)
            return Trial(size, measured.windows, measured.step_s, measured.peak_bytes)

        search = BatchSizeSearch(attempt, facts.num_records, config["accumulate"], request.budget)
        for trial in search.run():
            print_trial(trial)
            if not search.curve.fitting:
                fix = "see that 'paceline train' runs with it"
                if trial.memory:
                    fix = "free memory, choose a smaller model, or raise memory="
                raise ResourceError(104, f"batch_size = {trial.batch_size}", trial.why, fix)
    words = [*config_flags(request.config_dir), *request.words]
    curve = print_curve(search.curve, words, config, facts.cuda)
    if request.output:
        write_json(Path(request.output), {"command": sys.argv, "machine": machine(), **curve})
        say(f"written: {request.output}")
    return RunOutcome(0, "tuned")


def print_trial(trial: Trial) -> None:
    result = f"no: {trial.why}"
    if trial.fits:
        result = f"{rate(trial.records_per_s)} records/s, {_mib(trial.peak_bytes)}"
    say(f"{trial.batch_size:>8,}: {result}", sys.stderr)


def print_curve(curve: SpeedCurve, words: Sequence[str], config: Config, cuda: bool) -> Config:
    """Print the table and the recommended size. Return the same as plain values.

    ``words`` are the options and overrides of the command line.
    """
    key = "batch_size" if config["rank_batch_size"] is None else "rank_batch_size"
    best = curve.recommended
    typed = [word for word in words if word.split("=")[0] != key]
    command = ["paceline", "train", *typed, f"{key}={best.batch_size}"]
    near = f"the smallest within {100 - 100 * NEAR:.0f} % of the best rate"
    heads = [key, "records/s", "spread", "ms a step", "GPU memory" if cuda else "memory"]
    rows: list[list[str]] = []
    fastest = max(trial.records_per_s for trial in curve.fitting)
    for trial in curve.trials:
        size = str(trial.batch_size)
        if trial.fits:
            step_ms = 1e3 * trial.batch_size / trial.records_per_s
            bar = "█" * max(1, round(BAR * trial.records_per_s / fastest))
            figures = [
                rate(trial.records_per_s),
                f"± {100 * spread_share(trial.rates):.0f} %",
                f"{step_ms:,.1f}",
            ]
            rows.append([size, *figures, _mib(trial.peak_bytes), bar])
            continue
        why = "too slow to try" if trial.late else "fails"
        rows.append([size, "", "", "", "", "does not fit" if trial.memory else why])
    print_table(f"the rate over {key}", [], heads, rows, [""])
    largest = curve.largest.batch_size
    larger = next((trial for trial in curve.trials if trial.batch_size > largest), None)
    ends = {
        "records": f"possible: {largest}, all records of an epoch in one batch; it fits",
        "time": f"that was tried: {largest}; it fits. Steps of larger ones take too long for the "
        "budget: raise budget=",
        "memory": f"that fits: {largest}" + (f"; {larger.batch_size} does not" if larger else ""),
        "error": f"that runs: {largest}; larger ones fail: {larger.why if larger else ''}",
    }
    say(f"the largest {ends[curve.bound]}")
    say(f"recommended: {key}={best.batch_size}: {near}, {rate(best.records_per_s)} records/s")
    say(f"  {shlex.join(command)}")
    if best.batch_size != config[key]:
        was = f"{key} was {config[key]}"
        say(f"This changes what the model learns ({was}): look at optim.lr, too.")
    return {
        "key": key,
        "largest": curve.largest.batch_size,
        "bound": curve.bound,
        "recommended": best.batch_size,
        "curve": [_plain(trial) for trial in curve.trials],
    }


def _plain(trial: Trial) -> Config:
    plain = {**trial._asdict(), "fits": trial.fits}
    if trial.fits:
        plain |= {"records_per_s": trial.records_per_s, "spread": spread_share(trial.rates)}
    return plain


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
