"""Print a diagnosis: what limits training, the parts, the advice, the calls that wait."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from framework.cli.own_keys import config_flags
from framework.cli.print_table import print_table
from framework.cli.units import plural
from framework.commands.diagnose.device_syncs import Sync
from framework.commands.diagnose.diagnosis import Applied, Diagnosis
from framework.commands.diagnose.facts import DiagnosisFacts, Storage
from framework.commands.diagnose.verdict import Verdict
from framework.errors import say

MOST_SYNCS = 10
Changed = Callable[[Sequence[str]], list[str]]  # adds overrides to the words of a command


def show(diagnosis: Diagnosis, changed: Changed, config_dir: str | None) -> None:
    """Print the diagnosis. ``changed`` adds the overrides of advice to the words of ``train``."""
    flags = config_flags(config_dir)
    facts = diagnosis.facts
    title, advice = _titled_advice(diagnosis)
    say(f"{diagnosis.limit}\n")
    heads = ["records/s", "ms a step"]
    print_table("each part alone, then all together", ["part"], heads, part_rows(facts), [""])
    say("\n".join([*fact_lines(facts), "", title]))
    for number, verdict in enumerate(advice, 1):
        say("\n".join(advice_lines(number, verdict, changed, flags)))
    if diagnosis.rejected:
        say(f"no certain gain: {'; '.join(map(_rejected, diagnosis.rejected))}")
    say("\n".join(sync_lines(facts.syncs, facts.cuda)))
    say(f"took {diagnosis.seconds:.0f} s")


def _titled_advice(diagnosis: Diagnosis) -> tuple[str, list[Verdict]]:
    """Return a headline and the advice; if none is certain to gain, the most likely one."""
    advice = [verdict for verdict in diagnosis.verdicts if verdict.is_advice]
    if advice:
        return "what to do, the most promising first", advice
    title = "no change is certain to bring 3 % or more"
    if diagnosis.best is None:
        return title, []
    return f"{title}; the most likely:", [diagnosis.best]


def part_rows(facts: DiagnosisFacts) -> list[list[str]]:
    """Return (name, records/s, ms a step, note) of each part, in the order of a record."""
    rates = facts.rates
    settings = facts.settings
    workers = "0 workers"
    if settings.workers:
        workers = plural(settings.workers, settings.kind)
    reading = f"one thread, {100 * rates.read_cores:.0f} % of it computing"
    lock = f"{100 * facts.lock_share:.0f} % holds Python's lock"
    other = f"computing {rates.other_size} records a step"
    computing = f"repeating one batch, {rates.compute_cores:.1f} cores busy"
    slowed = f"forward, backward, optimizer: {100 * facts.slowed_share:.0f} % longer"
    beside = settings.batch_size / facts.beside_s if facts.mostly_slowed else None
    whole = f"{100 * rates.wait:.0f} % of it waiting, ± {100 * rates.spread:.0f} %"
    no_copy = "the device is the host"
    if facts.cuda:
        no_copy = "from page-locked memory"
    # Name, rate, note, note if it was not measured, records as a share of a batch. Without the
    # second note, the part is left out if it was not measured.
    parts = (
        ("reading the store", rates.read, reading, "not measured", 1.0),
        ("+ decoding, transforming", rates.prepare, "one thread", "not measured", 1.0),
        ("  the same, two threads", rates.prepare_two, lock, "", 1.0),
        ("  if your function did nothing", rates.prepare_plain, "one thread", "", 1.0),
        ("+ workers and loader", rates.loader, f"{workers}, {settings.loader}", "", 1.0),
        ("copying to the device", rates.copy, "from page-locked memory", no_copy, 1.0),
        (other, rates.other, "repeating one batch", "", rates.other_size / settings.batch_size),
        ("computing", rates.compute, computing, "", 1.0),
        ("  the same while data is read", beside, slowed, "", 1.0),
        ("the whole", rates.whole, whole, "", 1.0),
    )
    rows: list[list[str]] = []
    for name, rate, note, missing, share in parts:
        if rate is not None:
            rows.append([name, f"{rate:,.0f}", f"{share * facts.step_ms(rate):,.2f}", note])
        elif missing:
            rows.append([name, "-", "", missing])
    return rows


def fact_lines(facts: DiagnosisFacts) -> list[str]:
    """Return lines about the machine and the store."""
    machine = facts.machine
    free = f"{machine.memory_bytes / 1e9:.1f} GB of memory free"
    lines = [f"machine: {machine.num_cores} cores, {free}, {machine.gpu or 'no GPU'}"]
    if machine.busy:
        lines.append(
            f"note: other programs wanted {machine.load:.1f} cores in the minute before, so these "
            "figures are rough"
        )
    return [*lines, _store_line(facts.storage)]


def _store_line(storage: Storage | None) -> str:
    if storage is None:
        return "store: none; the source makes its own records"
    records = f"{storage.num_records:,} records of {storage.record_bytes / 1e3:,.1f} kB"
    records += f", {storage.codec or storage.encoding}"
    if storage.image_size is not None:
        records += f", {storage.image_size[0]} x {storage.image_size[1]} pixels"
    if storage.chunk_records is not None:
        records += f", in chunks of {storage.chunk_records}"
    cached = "unknown" if storage.cached is None else f"{100 * storage.cached:.0f} %"
    place = f"disk: {storage.disk}; in the page cache: {cached}"
    return f"store: {storage.path} ({storage.form}), {records}; {place}"


def advice_lines(
    number: int, verdict: Verdict, changed: Changed, flags: Sequence[str]
) -> list[str]:
    """Return the gain, the cause, the advice and its commands."""
    basis = "tried" if verdict.tried else "by the model"
    gain = f"{verdict.gain:.2f} times as fast"
    if verdict.spread:
        gain += f" ± {verdict.spread:.2f}"
    lines = [
        f"{number}. {verdict.rule}: {gain} ({basis})",
        f"   {verdict.says}",
        f"   {verdict.why}",
    ]
    if verdict.learns:
        lines.append("   This changes what the model learns: compare the validation figures.")
    if verdict.disk_bytes:
        lines.append(f"   The whole new store takes about {_size(verdict.disk_bytes)} on disk.")
    if verdict.pack_s:
        lines.append(f"   Packing takes about {max(1, round(verdict.pack_s))} s.")
    commands: list[list[str]] = []
    if verdict.repack is not None:
        commands += verdict.repack.commands()
    lines += [f"   paceline {shlex.join(command)}" for command in commands]
    if verdict.can_try:
        variable = "" if verdict.threads is None else f"OMP_NUM_THREADS={verdict.threads} "
        words = shlex.join(["train", *flags, *changed(verdict.words)])
        lines.append(f"   {variable}paceline {words}")
    if verdict.edit:
        lines.append(f"   write: {verdict.edit}")
    if verdict.action:
        lines.append(f"   do: {verdict.action}")
    return lines


def _size(num_bytes: float) -> str:
    """Return bytes in words: ``450 MB`` or ``4.6 GB``."""
    if num_bytes < 1e9:
        return f"{max(1.0, num_bytes / 1e6):.0f} MB"
    return f"{num_bytes / 1e9:,.1f} GB"


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
    costs = "the device idles after each"
    if not cuda:
        costs = "free on this CPU; a GPU idles after each"
    lines = ["", f"calls of your code that wait for the device in a step ({costs}):"]
    for sync in syncs[:MOST_SYNCS]:
        times = f", {sync.count} times" if sync.count > 1 else ""
        lines.append(f"  {os.path.relpath(sync.file)}:{sync.line}: {sync.call}{times}: {sync.text}")
    if len(syncs) > MOST_SYNCS:
        lines.append(f"  and {len(syncs) - MOST_SYNCS} more")
    return lines


def show_applied(applied: Applied | None) -> None:
    """Print the predicted gain beside the measured one."""
    say("")
    if applied is None:
        say("applied: nothing, since no advice has an override to apply")
        return
    if applied.note:
        say(applied.note)
    verdict = applied.verdict
    runs = applied.comparison
    measured = f"{runs.gain:.2f} ± {runs.spread:.2f}"
    say(f"applied {verdict.rule}: {len(runs.before)} runs with it and without, in turn")
    say(f"  now {median(runs.before):,.0f} records/s, then {median(runs.after):,.0f}")
    say(f"  predicted {verdict.gain:.2f} times as fast, measured {measured}")


def as_json(diagnosis: Diagnosis, words: Sequence[str]) -> dict[str, Any]:
    """Return all facts, verdicts and derived figures as plain values."""
    plain: dict[str, Any] = {"command": ["paceline", "diagnose", *words], **asdict(diagnosis)}
    facts = diagnosis.facts
    plain["facts"] |= {"headroom": facts.headroom, "lock_share": facts.lock_share}
    plain["facts"]["slowed_share"] = facts.slowed_share
    if diagnosis.applied is not None:
        comparison = diagnosis.applied.comparison
        plain["applied"]["comparison"] |= {"gain": comparison.gain, "spread": comparison.spread}
    return plain
