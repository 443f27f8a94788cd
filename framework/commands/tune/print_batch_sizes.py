"""Print each batch size when it was tried, the curve, and the recommended size."""

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from framework.commands.tune.batch_sizes import NEAR, SpeedCurve, Trial

Config = dict[str, Any]
BAR = 24  # characters


def print_trial(trial: Trial) -> None:
    result = f"no: {trial.why}"
    if trial.fits:
        result = f"{trial.records_per_s:,.0f} records/s, {_mib(trial.peak_bytes)}"
    console = Console(stderr=True, highlight=False)
    console.print(f"{trial.batch_size:>8,}: {result}", soft_wrap=True, markup=False)


def print_curve(curve: SpeedCurve, words: Sequence[str], config: Config, cuda: bool) -> Config:
    """Print the table and the recommended size. Return the same as plain values."""
    key = "batch_size" if config["rank_batch_size"] is None else "rank_batch_size"
    best = curve.recommended
    typed = [word for word in words if word.split("=")[0] != key]
    command = ["paceline", "train", *typed, f"{key}={best.batch_size}"]
    near = f"the smallest within {100 - 100 * NEAR:.0f} % of the best rate"
    lines = [
        _largest(curve),
        f"recommended: {key}={best.batch_size}: {near}, {best.records_per_s:,.0f} records/s",
        f"  {shlex.join(command)}",
    ]
    if best.batch_size != config[key]:
        lines.append(
            f"This changes what the model learns ({key} was {config[key]}): look at optim.lr, too."
        )
    console = Console(highlight=False)
    console.width = max(console.width, 96)
    console.print(_table(curve, key, cuda))
    for line in lines:
        console.print(line, soft_wrap=True, markup=False)
    return {
        "key": key,
        "largest": curve.largest.batch_size,
        "bound": curve.bound,
        "recommended": best.batch_size,
        "curve": [_plain(trial) for trial in curve.trials],
    }


def _largest(curve: SpeedCurve) -> str:
    """Return how large a batch may be, and what limits it."""
    size = curve.largest.batch_size
    failed = [trial for trial in curve.trials if not trial.fits and trial.batch_size > size]
    if curve.bound == "records":
        return f"the largest possible: {size}, all records of an epoch in one batch; it fits"
    if curve.bound == "time":
        what = "Steps of larger ones take too long for the budget: raise budget="
        return f"the largest that was tried: {size}; it fits. {what}"
    if curve.bound == "memory":
        next_size = f"; {failed[0].batch_size} does not" if failed else ""
        return f"the largest that fits: {size}{next_size}"
    return f"the largest that runs: {size}; larger ones fail: {failed[0].why if failed else ''}"


def _table(curve: SpeedCurve, key: str, cuda: bool) -> Table:
    table = Table(title=f"the rate over {key}", title_justify="left")
    for name in (key, "records/s", "spread", "ms a step", "GPU memory" if cuda else "memory"):
        table.add_column(name, justify="right")
    table.add_column("")
    best = max(trial.records_per_s for trial in curve.fitting)
    for trial in curve.trials:
        size = str(trial.batch_size)
        if trial.fits:
            table.add_row(
                size,
                f"{trial.records_per_s:,.0f}",
                f"± {100 * trial.spread:.0f} %",
                f"{1e3 * trial.batch_size / trial.records_per_s:,.1f}",
                _mib(trial.peak_bytes),
                "█" * max(1, round(BAR * trial.records_per_s / best)),
            )
        elif trial.memory:
            table.add_row(size, "", "", "", "", "does not fit")
        else:
            table.add_row(size, "", "", "", "", "too slow to try" if trial.late else "fails")
    return table


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"


def _plain(trial: Trial) -> Config:
    plain = {**trial._asdict(), "rates": list(trial.rates), "fits": trial.fits}
    if trial.fits:
        plain |= {"records_per_s": trial.records_per_s, "spread": trial.spread}
    return plain
