"""What ``paceline tune what=batch_size`` prints: each size as it is tried, the curve, and which to take."""

import shlex
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from framework.commands.tune.batch_sizes import NEAR, SpeedCurve, Trial

Config = dict[str, Any]
BAR = 24  # characters


def tell_trial(trial: Trial) -> None:
    """One line."""
    if trial.fits:
        text = f"{trial.batch_size:>8,}: {trial.records_per_s:,.0f} records/s, {_bytes(trial.peak_bytes)}"
    else:
        text = f"{trial.batch_size:>8,}: no: {trial.why}"
    Console(stderr=True, highlight=False).print(text, soft_wrap=True, markup=False)


def tell_curve(curve: SpeedCurve, words: Sequence[str], config: Config, cuda: bool) -> Config:
    """The table and the recommendation. The same as plain values."""
    console = Console(highlight=False)
    console.width = max(console.width, 96)
    key = "batch_size" if config["rank_batch_size"] is None else "rank_batch_size"
    console.print(_table(curve, key, cuda))
    best = curve.recommended
    console.print(_largest(curve), soft_wrap=True, markup=False)
    near = f"the smallest within {100 - 100 * NEAR:.0f} % of the best rate"
    console.print(
        f"recommended: {key}={best.batch_size}: {near}, {best.records_per_s:,.0f} records/s",
        soft_wrap=True,
        markup=False,
    )
    kept = [word for word in words if word.split("=")[0] != key]
    console.print(
        f"  {shlex.join(['paceline', 'train', *kept, f'{key}={best.batch_size}'])}",
        soft_wrap=True,
        markup=False,
    )
    if best.batch_size != config[key]:
        console.print(
            f"this changes what is learned ({key} was {config[key]}): look at optim.lr too",
            soft_wrap=True,
            markup=False,
        )
    return {
        "key": key,
        "largest": curve.largest.batch_size,
        "bound": curve.bound,
        "recommended": best.batch_size,
        "curve": [_plain(trial) for trial in curve.trials],
    }


def _largest(curve: SpeedCurve) -> str:
    """How large a batch may be, and what bounds it."""
    size = curve.largest.batch_size
    failed = [trial for trial in curve.trials if not trial.fits and trial.batch_size > size]
    return {
        "records": f"the largest there can be: {size}, all records of an epoch in one batch; it fits",
        "time": f"the largest that was tried: {size}; it fits. Steps of larger ones take too long for the budget: budget= more",
        "memory": f"the largest that fits: {size}{f'; {failed[0].batch_size} does not' if failed else ''}",
        "error": f"the largest that runs: {size}; larger ones fail: {failed[0].why if failed else ''}",
    }[curve.bound]


def _table(curve: SpeedCurve, key: str, cuda: bool) -> Table:
    table = Table(title=f"the rate over {key}", title_justify="left")
    for name in (key, "records/s", "spread", "ms a step", "GPU memory" if cuda else "memory"):
        table.add_column(name, justify="right")
    table.add_column("")
    best = max(trial.records_per_s for trial in curve.fitting)
    for trial in curve.trials:
        table.add_row(f"{trial.batch_size}", *_cells(trial, best))
    return table


def _cells(trial: Trial, best: float) -> list[str]:
    if not trial.fits:
        return [
            "",
            "",
            "",
            "",
            "does not fit" if trial.memory else "too slow to try" if trial.late else "fails",
        ]
    step_ms = 1e3 * trial.batch_size / trial.records_per_s
    bar = "█" * max(1, round(BAR * trial.records_per_s / best))
    return [
        f"{trial.records_per_s:,.0f}",
        f"± {100 * trial.spread:.0f} %",
        f"{step_ms:,.1f}",
        _bytes(trial.peak_bytes),
        bar,
    ]


def _bytes(count: int) -> str:
    return f"{count / (1 << 20):,.0f} MiB"


def _plain(trial: Trial) -> Config:
    rate = {"records_per_s": trial.records_per_s, "spread": trial.spread} if trial.fits else {}
    return {**trial._asdict(), "rates": list(trial.rates), "fits": trial.fits, **rate}
