"""A diagnosis as it is read: what limits, the parts, the advice with commands, the calls that wait for the device."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from framework.commands.diagnose.device_syncs import Sync
from framework.commands.diagnose.diagnosis import Applied, Diagnosis
from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.verdict import Verdict

MOST_SYNCS = 10
Changed = Callable[[Sequence[str]], list[str]]  # overrides -> all words of train with them


def show(found: Diagnosis, changed: Changed, config_dir: str | None) -> None:
    """Print it. ``changed``: makes the words of a command from those of an advice."""
    console = Console(highlight=False)
    console.width = max(
        console.width, 110
    )  # without a terminal rich assumes 80 columns, and folds every row
    _say(console, found.limit)
    console.print()
    console.print(parts_table(found.facts))
    for line in fact_lines(found.facts):
        _say(console, line)
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    advice = [verdict for verdict in found.verdicts if verdict.words or verdict.edit]
    title = "what to do, the most promising first"
    if not advice:
        advice = [] if found.best is None else [found.best]
        title = f"no change surely brings 3 % or more{'; the most likely:' if advice else ''}"
    console.print()
    _say(console, title)
    for number, verdict in enumerate(advice, 1):
        for line in advice_lines(number, verdict, changed, flags):
            _say(console, line)
    if found.rejected:
        _say(
            console, "no sure gain: " + "; ".join(_rejected(verdict) for verdict in found.rejected)
        )
    for line in sync_lines(found.syncs, found.facts.cuda):
        _say(console, line)
    _say(console, f"took {found.seconds:.0f} s")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def parts_table(facts: DiagnosisFacts) -> Table:
    """A row per part: alone, in this order of the way of a record."""
    rates = facts.rates
    rows: list[tuple[str, float | None, str]] = [
        (
            "reading the store",
            rates.read,
            f"one thread, {100 * rates.read_cores:.0f} % of it computing",
        ),
        ("+ decoding, transforming", rates.prepare, "one thread"),
        (
            "  the same, two threads",
            rates.prepare_two,
            f"{100 * facts.lock_share:.0f} % holds Python's lock",
        ),
        ("  without your function", rates.prepare_plain, "one thread"),
        (
            "+ workers and loader",
            rates.loader,
            f"{facts.settings.workers} {_kind(facts)}, {facts.settings.loader}",
        ),
        (
            "copying to the device",
            rates.copy,
            "from page-locked memory" if facts.cuda else "the device is the host",
        ),
        ("computing, half the batch", rates.half, "one batch for ever"),
        ("computing", rates.compute, f"one batch for ever, {rates.compute_cores:.1f} cores busy"),
        (
            "the whole",
            rates.whole,
            f"{100 * rates.wait:.0f} % of it waiting, ± {100 * rates.spread:.0f} %",
        ),
    ]
    table = Table("part", title="each part alone, then all together", title_justify="left")
    for name in ("records/s", "ms a step"):
        table.add_column(name, justify="right")
    table.add_column("")
    optional = ("  ", "computing, half")
    for name, rate, note in rows:
        if rate is None and name.startswith(optional):
            continue
        step = (
            ""
            if rate is None
            else f"{1e3 * facts.settings.batch_size / rate * (0.5 if 'half' in name else 1):,.2f}"
        )
        table.add_row(
            name,
            "-" if rate is None else f"{rate:,.0f}",
            step,
            note if rate is not None or name.startswith("copy") else "not measured",
        )
    return table


def _kind(facts: DiagnosisFacts) -> str:
    return (
        {"thread": "threads", "process": "processes"}[facts.settings.kind]
        if facts.settings.workers
        else "workers"
    )


def fact_lines(facts: DiagnosisFacts) -> list[str]:
    """The machine, the store."""
    machine, storage = facts.machine, facts.storage
    gpu = machine.gpu or "no GPU"
    lines = [
        f"machine: {machine.num_cores} cores, {machine.memory_bytes / 1e9:.1f} GB of memory free, {gpu}"
    ]
    if machine.busy:
        lines.append(
            f"note: other programs wanted {machine.load:.1f} cores in the minute before: these figures are rough"
        )
    if storage is None:
        return [*lines, "store: none; the source makes its own records"]
    cached = "unknown" if storage.cached is None else f"{100 * storage.cached:.0f} %"
    size = (
        ""
        if storage.image_size is None
        else f", {storage.image_size[0]} x {storage.image_size[1]} pixels"
    )
    chunks = "" if storage.chunk_records is None else f", in chunks of {storage.chunk_records}"
    lines.append(
        f"store: {storage.path} ({storage.form}), {storage.num_records:,} records of {storage.record_bytes / 1e3:,.1f} kB, "
        f"{storage.encoding}{size}{chunks}; disk: {storage.disk}; in the page cache: {cached}"
    )
    return lines


def advice_lines(
    number: int, verdict: Verdict, changed: Changed, flags: Sequence[str]
) -> list[str]:
    """What, how much, why, and the commands."""
    basis = "tried" if verdict.tried else "by the model"
    spread = f" ± {verdict.spread:.2f}" if verdict.spread else ""
    lines = [
        f"{number}. {verdict.rule}: {verdict.gain:.2f} times as fast{spread} ({basis})",
        f"   {verdict.says}",
        f"   {verdict.why}",
    ]
    if verdict.learns:
        lines.append("   it changes what is learned: look at the validation figures")
    if verdict.pack_s:
        lines.append(f"   packing takes about {max(1, round(verdict.pack_s))} s")
    commands = [] if verdict.repack is None else verdict.repack.commands()
    if verdict.words:
        commands.append(["train", *flags, *changed(verdict.words)])
    lines += [f"   paceline {shlex.join(command)}" for command in commands]
    return [*lines, *([f"   write: {verdict.edit}"] if verdict.edit else [])]


def _rejected(verdict: Verdict) -> str:
    if verdict.failed:
        return f"{verdict.rule} ({verdict.failed})"
    if not verdict.tried:
        return f"{verdict.rule} (not tried; {verdict.gain:.2f} by the model)"
    return f"{verdict.rule} {verdict.gain:.2f} ± {verdict.spread:.2f}"


def sync_lines(syncs: Sequence[Sync], cuda: bool) -> list[str]:
    """Each place, with its line of code."""
    if not syncs:
        return ["waits for the device in a step of your model, objective and augment: none"]
    costs = (
        "each lets the device run dry"
        if cuda
        else "free on this CPU; on a GPU each would let the device run dry"
    )
    lines = ["", f"waits for the device in a step of your code ({costs}):"]
    for sync in syncs[:MOST_SYNCS]:
        times = f", {sync.count} times" if sync.count > 1 else ""
        lines.append(f"  {os.path.relpath(sync.file)}:{sync.line}: {sync.call}{times}: {sync.text}")
    return lines + ([f"  and {len(syncs) - MOST_SYNCS} more"] if len(syncs) > MOST_SYNCS else [])


def show_applied(applied: Applied | None) -> None:
    """Predicted and measured, side by side."""
    console = Console(highlight=False)
    console.print()
    if applied is None:
        _say(console, "applied: nothing, since there is no advice that an override can follow")
        return
    verdict, comparison = applied.verdict, applied.comparison
    if applied.note:
        _say(console, applied.note)
    before, after = (
        sorted(rates)[len(rates) // 2] for rates in (comparison.before, comparison.after)
    )
    _say(
        console,
        f"applied {verdict.rule}, beside the present settings, {len(comparison.before)} times each in turn:",
    )
    _say(console, f"  now {before:,.0f} records/s, then {after:,.0f}")
    _say(
        console,
        f"  predicted {verdict.gain:.2f} times as fast, measured {comparison.gain:.2f} ± {comparison.spread:.2f}",
    )


def as_json(found: Diagnosis, words: Sequence[str]) -> dict[str, Any]:
    """All of it, as plain values, with what follows from them."""
    plain: dict[str, Any] = {"command": ["paceline", "diagnose", *words], **asdict(found)}
    plain["facts"] |= {"headroom": found.facts.headroom, "lock_share": found.facts.lock_share}
    if found.applied is not None:
        comparison = found.applied.comparison
        plain["applied"]["comparison"] |= {"gain": comparison.gain, "spread": comparison.spread}
    return plain
