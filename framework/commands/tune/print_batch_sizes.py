"""Search for the batch size: print each size that was tried, the curve, and the best size."""

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from framework.cli.outcome import RunOutcome
from framework.cli.own_keys import config_flags
from framework.cli.print_table import print_table
from framework.cli.progress import pack_missing
from framework.cli.units import rate
from framework.commands.tune.batch_sizes import NEAR, BatchSizeSearch, SpeedCurve, Trial
from framework.commands.tune.memory_guard import TrialProcess, smallest_fails
from framework.commands.tune.print_search import print_busy
from framework.errors import say
from framework.measure.host import machine, num_cores
from framework.system.durable import write_json
from framework.system.stopping import message_if_stopped, printed, undone

if TYPE_CHECKING:
    from framework.commands.tune.tune import TuneRequest

Config = dict[str, Any]
BAR = 24  # characters


def tune_batch_size(request: "TuneRequest", config: Config, allowed: tuple[str, ...]) -> RunOutcome:
    """Search, and print every trial and the curve."""
    pack_missing(config, allowed)
    print_busy(num_cores())
    with closing(TrialProcess(config, allowed, request.memory)) as process:
        search = BatchSizeSearch(
            process.attempt, process.num_records, config["accumulate"], request.budget
        )

        def print_known() -> Config:
            if not search.curve.fitting:
                return {}
            words = [*config_flags(request.config_dir), *request.words]
            return print_curve(search.curve, words, config, process.cuda)

        stopped = "stopped{by}: the results so far are above; nothing was written"
        with undone(printed(print_known)), message_if_stopped(stopped):
            for trial in search.run():
                print_trial(trial)
                if not search.curve.fitting:
                    raise smallest_fails(trial)
        curve = print_known()
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
    print_table(f"the rate over {key}", [], heads, _rows(curve), [""])
    say(_largest(curve))
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
        "curve": [trial.as_json() for trial in curve.trials],
    }


def _largest(curve: SpeedCurve) -> str:
    """Return how large a batch may be, and what limits it."""
    size = curve.largest.batch_size
    larger = next((trial for trial in curve.trials if trial.batch_size > size), None)
    if curve.bound == "records":
        return f"the largest possible: {size}, all records of an epoch in one batch; it fits"
    if curve.bound == "time":
        what = "Steps of larger ones take too long for the budget: raise budget="
        return f"the largest that was tried: {size}; it fits. {what}"
    if curve.bound == "memory":
        next_size = f"; {larger.batch_size} does not" if larger else ""
        return f"the largest that fits: {size}{next_size}"
    return f"the largest that runs: {size}; larger ones fail: {larger.why if larger else ''}"


def _rows(curve: SpeedCurve) -> Iterator[list[str]]:
    best = max(trial.records_per_s for trial in curve.fitting)
    for trial in curve.trials:
        size = str(trial.batch_size)
        if trial.fits:
            step_ms = 1e3 * trial.batch_size / trial.records_per_s
            spread = f"± {100 * trial.spread:.0f} %"
            bar = "█" * max(1, round(BAR * trial.records_per_s / best))
            figures = [rate(trial.records_per_s), spread, f"{step_ms:,.1f}"]
            yield [size, *figures, _mib(trial.peak_bytes), bar]
            continue
        why = "too slow to try" if trial.late else "fails"
        if trial.memory:
            why = "does not fit"
        yield [size, "", "", "", "", why]


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
