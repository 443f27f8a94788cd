"""Print a diagnosis: what limits training, the parts, the advice, the calls that wait."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from framework.commands.diagnose.device_syncs import Sync
from framework.commands.diagnose.diagnosis import Applied, Diagnosis
from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.verdict import Verdict

MOST_SYNCS = 10
Changed = Callable[[Sequence[str]], list[str]]  # adds overrides to the words of a command


def show(diagnosis: Diagnosis, changed: Changed, config_dir: str | None) -> None:
    """Print the diagnosis. ``changed`` adds the overrides of advice to the words of ``train``."""
    console = Console(highlight=False)
    console.width = max(console.width, 110)  # without a terminal Rich wraps rows at 80 columns
    flags = [] if config_dir is None else ["--config-dir", config_dir]
    facts = diagnosis.facts
    advice = [verdict for verdict in diagnosis.verdicts if verdict.words or verdict.edit]
    title = "what to do, the most promising first"
    if not advice:
        title = "no change is certain to bring 3 % or more"
        if diagnosis.best is not None:
            advice = [diagnosis.best]
            title += "; the most likely:"
    _say(console, diagnosis.limit)
    console.print()
    console.print(parts_table(facts))
    for line in [*fact_lines(facts), "", title]:
        _say(console, line)
    for number, verdict in enumerate(advice, 1):
        for line in advice_lines(number, verdict, changed, flags):
            _say(console, line)
    if diagnosis.rejected:
        _say(console, f"no certain gain: {'; '.join(map(_rejected, diagnosis.rejected))}")
    for line in sync_lines(diagnosis.syncs, facts.cuda):
        _say(console, line)
    _say(console, f"took {diagnosis.seconds:.0f} s")


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def parts_table(facts: DiagnosisFacts) -> Table:
    """Return a table with a row per part, in the order that a record passes through them."""
    table = Table("part", title="each part alone, then all together", title_justify="left")
    table.add_column("records/s", justify="right")
    table.add_column("ms a step", justify="right")
    table.add_column("")
    rates = facts.rates

    def add(name: str, rate: float | None, note: str, missing: str = "not measured") -> None:
        if rate is None:
            table.add_row(name, "-", "", missing)
        else:
            table.add_row(name, f"{rate:,.0f}", f"{facts.step_ms(rate):,.2f}", note)

    read_note = f"one thread, {100 * rates.read_cores:.0f} % of it computing"
    add("reading the store", rates.read, read_note)
    add("+ decoding, transforming", rates.prepare, "one thread")
    if rates.prepare_two is not None:
        lock_note = f"{100 * facts.lock_share:.0f} % holds Python's lock"
        add("  the same, two threads", rates.prepare_two, lock_note)
    if rates.prepare_plain is not None:
        add("  without your function", rates.prepare_plain, "one thread")
    add("+ workers and loader", rates.loader, f"{_workers(facts)}, {facts.settings.loader}")
    copy_missing = "from page-locked memory" if facts.cuda else "the device is the host"
    add("copying to the device", rates.copy, "from page-locked memory", copy_missing)
    if rates.half is not None:
        half_ms = f"{facts.step_ms(rates.half) / 2:,.2f}"
        table.add_row(
            "computing, half the batch", f"{rates.half:,.0f}", half_ms, "repeating one batch"
        )
    compute_note = f"repeating one batch, {rates.compute_cores:.1f} cores busy"
    add("computing", rates.compute, compute_note)
    whole_note = f"{100 * rates.wait:.0f} % of it waiting, ± {100 * rates.spread:.0f} %"
    add("the whole", rates.whole, whole_note)
    return table


def _workers(facts: DiagnosisFacts) -> str:
    if not facts.settings.workers:
        return "0 workers"
    kinds = {"thread": "threads", "process": "processes"}
    return f"{facts.settings.workers} {kinds[facts.settings.kind]}"


def fact_lines(facts: DiagnosisFacts) -> list[str]:
    """Return lines about the machine and the store."""
    machine = facts.machine
    storage = facts.storage
    free_gb = machine.memory_bytes / 1e9
    gpu = machine.gpu or "no GPU"
    lines = [f"machine: {machine.num_cores} cores, {free_gb:.1f} GB of memory free, {gpu}"]
    if machine.busy:
        lines.append(
            f"note: other programs wanted {machine.load:.1f} cores in the minute before, so these "
            "figures are rough"
        )
    if storage is None:
        return [*lines, "store: none; the source makes its own records"]
    parts = [
        f"{storage.num_records:,} records of {storage.record_bytes / 1e3:,.1f} kB",
        storage.encoding,
    ]
    if storage.image_size is not None:
        parts.append(f"{storage.image_size[0]} x {storage.image_size[1]} pixels")
    if storage.chunk_records is not None:
        parts.append(f"in chunks of {storage.chunk_records}")
    cached = "unknown" if storage.cached is None else f"{100 * storage.cached:.0f} %"
    lines.append(
        f"store: {storage.path} ({storage.form}), {', '.join(parts)}; disk: {storage.disk}; "
        f"in the page cache: {cached}"
    )
    return lines


def advice_lines(
    number: int, verdict: Verdict, changed: Changed, flags: Sequence[str]
) -> list[str]:
    """Return the gain, the cause, the advice and its commands."""
    basis = "tried" if verdict.tried else "by the model"
    spread = f" ± {verdict.spread:.2f}" if verdict.spread else ""
    lines = [
        f"{number}. {verdict.rule}: {verdict.gain:.2f} times as fast{spread} ({basis})",
        f"   {verdict.says}",
        f"   {verdict.why}",
    ]
    if verdict.learns:
        lines.append("   This changes what the model learns: compare the validation figures.")
    if verdict.pack_s:
        lines.append(f"   Packing takes about {max(1, round(verdict.pack_s))} s.")
    commands = [] if verdict.repack is None else verdict.repack.commands()
    if verdict.words:
        commands.append(["train", *flags, *changed(verdict.words)])
    lines += [f"   paceline {shlex.join(command)}" for command in commands]
    if verdict.edit:
        lines.append(f"   write: {verdict.edit}")
    return lines


def _rejected(verdict: Verdict) -> str:
    if verdict.failed:
        return f"{verdict.rule} ({verdict.failed})"
    if not verdict.tried:
        return f"{verdict.rule} (not tried; {verdict.gain:.2f} by the model)"
    return f"{verdict.rule} {verdict.gain:.2f} ± {verdict.spread:.2f}"


def sync_lines(syncs: Sequence[Sync], cuda: bool) -> list[str]:
    """Return lines about each call that waits for the device."""
    if not syncs:
        return ["calls of your model, objective and augment that wait for the device: none"]
    costs = "the device idles after each" if cuda else "free on this CPU; a GPU idles after each"
    lines = ["", f"calls of your code that wait for the device in a step ({costs}):"]
    for sync in syncs[:MOST_SYNCS]:
        times = f", {sync.count} times" if sync.count > 1 else ""
        lines.append(f"  {os.path.relpath(sync.file)}:{sync.line}: {sync.call}{times}: {sync.text}")
    if len(syncs) > MOST_SYNCS:
        lines.append(f"  and {len(syncs) - MOST_SYNCS} more")
    return lines


def show_applied(applied: Applied | None) -> None:
    """Print the predicted gain beside the measured one."""
    console = Console(highlight=False)
    console.print()
    if applied is None:
        _say(console, "applied: nothing, since no advice has an override to apply")
        return
    if applied.note:
        _say(console, applied.note)
    verdict = applied.verdict
    runs = applied.comparison
    measured = f"{runs.gain:.2f} ± {runs.spread:.2f}"
    _say(console, f"applied {verdict.rule}: {len(runs.before)} runs with it and without, in turn")
    _say(console, f"  now {median(runs.before):,.0f} records/s, then {median(runs.after):,.0f}")
    _say(console, f"  predicted {verdict.gain:.2f} times as fast, measured {measured}")


def as_json(diagnosis: Diagnosis, words: Sequence[str]) -> dict[str, Any]:
    """Return all facts, verdicts and derived figures as plain values."""
    plain: dict[str, Any] = {"command": ["paceline", "diagnose", *words], **asdict(diagnosis)}
    facts = diagnosis.facts
    plain["facts"] |= {"headroom": facts.headroom, "lock_share": facts.lock_share}
    if diagnosis.applied is not None:
        comparison = diagnosis.applied.comparison
        plain["applied"]["comparison"] |= {"gain": comparison.gain, "spread": comparison.spread}
    return plain
