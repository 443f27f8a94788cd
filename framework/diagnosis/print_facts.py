"""Print what was measured and advised: of a run, of its ranks, and of a watched script."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from framework.cli.tables import plural, print_spans, print_table
from framework.contracts.span import IDLE, span_figures
from framework.diagnosis import code_lines, judge, step_rules
from framework.diagnosis.facts import UNKNOWN, Facts, RankFacts, ScriptFacts, Verdict, times
from framework.errors import say

RANKS_LIMIT = "Ranks limit training."
MOST_SYNCS = 10  # that are printed
PARTS = {"step": "a step, in Python", "items": "making an item"}

TrainWords = Callable[[Sequence[str]], list[str]]  # the words that train with some overrides more


def show(diagnosis: judge.Diagnosis, train_words: TrainWords) -> None:
    facts = diagnosis.facts
    say(f"{diagnosis.limit}\n")
    heads = ["records/s", "ms a step"]
    print_table("each part alone, then all together", ["part"], heads, part_rows(facts), [""])
    free = f"{facts.free_memory_bytes / 1e9:.1f} GB of memory free"
    say(f"machine: {facts.num_cores} cores, {free}, {facts.gpu or 'no GPU'}")
    storage = facts.storage
    if storage is None:
        say("store: none; the source makes its own records\n")
    else:
        records = f"{storage.num_records:,} records of {storage.record_bytes / 1e3:,.1f} kB"
        records += f", {storage.codec or storage.encoding}"
        if storage.image_size is not None:
            records += f", {storage.image_size[0]} x {storage.image_size[1]} pixels"
        cached = "unknown" if storage.cached is None else f"{100 * storage.cached:.0f} %"
        place = f"disk: {storage.disk}; in the page cache: {cached}"
        say(f"store: {storage.path} ({storage.form}), {records}; {place}\n")
    advice = [verdict for verdict in diagnosis.verdicts if verdict.is_advice]
    if advice:
        say("what to do, the most promising first")
    elif diagnosis.best is None:
        say("no change is certain to bring 3 % or more")
    else:
        say("no change is certain to bring 3 % or more; the most likely:")
        advice = [diagnosis.best]
    _say_advice(advice, train_words)
    rejected: list[str] = []
    for verdict in diagnosis.rejected:
        why = f"{verdict.gain:.2f} ± {verdict.spread:.2f}"
        if verdict.failed:
            why = f"({verdict.failed})"
        elif not verdict.tried:
            why = f"(not tried; {verdict.gain:.2f} by the model)"
        rejected.append(f"{verdict.rule} {why}")
    if rejected:
        say(f"no certain gain: {'; '.join(rejected)}")
    say("\n".join(sync_lines(facts.syncs, facts.gpu is not None)))
    say(f"took {diagnosis.seconds:.0f} s")


def part_rows(facts: Facts) -> list[list[str]]:
    """Return (name, records/s, ms a step, note) of each part, in the order of a record."""
    rows: list[list[str]] = []

    def add(
        name: str, rate: float | None, note: str, missing: str = "", size: int = facts.batch_size
    ) -> None:
        if rate is not None:
            rows.append([name, f"{rate:,.0f}", f"{1e3 * size / rate:,.2f}", note])
        elif missing:
            rows.append([name, "-", "", missing])

    reading = f"one thread, {100 * facts.read_cores:.0f} % of it computing"
    add("reading the store", facts.read, reading, "not measured")
    add("+ decoding, transforming", facts.prepare, "one thread", "not measured")
    lock = f"{100 * facts.lock_share:.0f} % holds Python's lock"
    add("  the same, two threads", facts.prepare_two, lock)
    workers = "0 workers" if not facts.workers else plural(facts.workers, facts.kind)
    add("+ workers and loader", facts.loader_rate, f"{workers}, {facts.loader}")
    no_copy = "from page-locked memory" if facts.gpu else "the device is the host"
    add("copying to the device", facts.copy, "from page-locked memory", no_copy)
    other = f"computing {facts.other_size} records a step"
    add(other, facts.other, "repeating one batch", size=facts.other_size)
    add("computing", facts.compute, f"repeating one batch, {facts.compute_cores:.1f} cores busy")
    if facts.mostly_slowed:
        slowed = f"forward, backward, optimizer: {100 * facts.slowed_share:.0f} % longer"
        add("  the same while data is read", facts.batch_size / facts.training_s, slowed)
    whole = f"{100 * facts.wait:.0f} % of it waiting, ± {100 * facts.spread:.0f} %"
    add("the whole", facts.whole, whole)
    return rows


def advice_lines(number: int, verdict: Verdict, train_words: TrainWords = list[str]) -> list[str]:
    """Return the gain, the cause, the advice and its commands."""
    gain = f"{times(verdict.gain, 2)} as fast (by the model)"
    if verdict.gain == UNKNOWN:
        gain = "the gain is not predictable, so try it"
    elif verdict.tried:
        gain = f"{times(verdict.gain, 2)} as fast ± {verdict.spread:.2f} (tried)"
    lines = [verdict.says, verdict.why]
    if verdict.learns:
        lines.append("This changes what the model learns: compare the validation figures.")
    if verdict.disk_bytes:
        size = f"{max(1.0, verdict.disk_bytes / 1e6):.0f} MB"
        if verdict.disk_bytes >= 1e9:
            size = f"{verdict.disk_bytes / 1e9:,.1f} GB"
        lines.append(f"The whole new store takes about {size} on disk.")
    if verdict.pack_s:
        lines.append(f"Packing takes about {max(1, round(verdict.pack_s))} s.")
    commands = verdict.repack.commands() if verdict.repack else []
    lines += [f"paceline {shlex.join(command)}" for command in commands]
    if verdict.can_try:
        variable = "" if verdict.threads is None else f"OMP_NUM_THREADS={verdict.threads} "
        lines.append(f"{variable}paceline {shlex.join(train_words(verdict.words))}")
    if verdict.edit:
        label = "type" if verdict.edit.startswith("paceline ") else "write"
        lines.append(f"{label}: {verdict.edit}")
    if verdict.action:
        lines.append(f"do: {verdict.action}")
    return [f"{number}. {verdict.rule}: {gain}", *(f"   {line}" for line in lines)]


def _say_advice(verdicts: Sequence[Verdict], train_words: TrainWords = list[str]) -> None:
    for number, verdict in enumerate(verdicts, 1):
        say("\n".join(advice_lines(number, verdict, train_words)))


def sync_lines(syncs: Sequence[code_lines.Sync], cuda: bool) -> list[str]:
    if not syncs:
        return ["calls of your model, objective and augment that wait for the device: none"]
    costs = "the device idles after each" if cuda else "free on this CPU; a GPU idles after each"
    lines = ["", f"calls of your code that wait for the device in a step ({costs}):"]
    for sync in syncs[:MOST_SYNCS]:
        repeats = f", {sync.count} times" if sync.count > 1 else ""
        lines.append(f"  {step_rules.place_of(sync)}: {sync.call}{repeats}: {sync.text}")
    if len(syncs) > MOST_SYNCS:
        lines.append(f"  and {len(syncs) - MOST_SYNCS} more")
    return lines


def show_applied(applied: judge.Applied | None) -> None:
    say("")
    if applied is None:
        say("applied: nothing, since no advice has an override to apply")
        return
    if applied.note:
        say(applied.note)
    verdict, runs = applied.verdict, applied.comparison
    measured = f"{runs.gain:.2f} ± {runs.spread:.2f}"
    say(f"applied {verdict.rule}: {len(runs.before)} runs with it and without, in turn")
    say(f"  now {median(runs.before):,.0f} records/s, then {median(runs.after):,.0f}")
    say(f"  predicted {verdict.gain:.2f} times as fast, measured {measured}")


def as_json(diagnosis: judge.Diagnosis, words: Sequence[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {"command": ["paceline", "diagnose", *words], **asdict(diagnosis)}
    for name in ("headroom", "lock_share", "slowed_share"):
        plain["facts"][name] = getattr(diagnosis.facts, name)
    if diagnosis.applied is not None:
        comparison = diagnosis.applied.comparison
        plain["applied"]["comparison"] |= {"gain": comparison.gain, "spread": comparison.spread}
    return plain


def show_ranks(facts: RankFacts, train_words: TrainWords) -> None:
    verdicts = judge.verdicts_of(facts)
    cause = judge.rank_cause(facts, verdicts)
    if cause is not None:
        say(f"{RANKS_LIMIT} {cause.says}\n")
    title = f"a step of {facts.num_ranks} ranks, over {facts.num_steps} steps"
    rows: list[list[str]] = []
    for name, span in facts.spans.items():
        cells = [f"{1e3 * seconds:,.2f}" for seconds in (span.min_s, span.median_s, span.max_s)]
        rows.append([name, *cells, f"slowest: rank {span.rank}"])
    print_table(title, ["span"], ["min ms", "median ms", "max ms"], rows, [""])
    line = f"{1e3 * facts.step_s:.2f} ms a step: exchanges alone {100 * facts.exchange_share:.0f} %"
    line += f", waiting for ranks {100 * facts.waiting_share:.0f} %"
    if facts.unsynced_s is not None:
        line += f", without exchange of gradients {1e3 * facts.unsynced_s:.2f} ms a step"
    say(f"{line}\n")
    if verdicts:
        say("what to do about the ranks, the most promising first")
    _say_advice(verdicts, train_words)


def ranks_as_json(facts: RankFacts, words: Sequence[str], seconds: float) -> dict[str, Any]:
    """Return all facts and verdicts as plain values, named as those of one process."""
    verdicts = judge.verdicts_of(facts)
    cause = judge.rank_cause(facts, verdicts)
    spans = {name: span._asdict() for name, span in facts.spans.items()}
    named = {"spans": spans, "late": facts.late and facts.late._asdict()}
    return {
        "seconds": seconds,
        "command": ["paceline", "diagnose", *words],
        "cause": "" if cause is None else cause.rule,
        "limit": "" if cause is None else f"{RANKS_LIMIT} {cause.says}",
        "facts": {"ranks": {**asdict(facts), **named}},
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "rejected": [],
        "applied": None,
    }


def show_watch(facts: ScriptFacts) -> None:
    say(f"\npaceline watch: {judge.script_limit(facts)}")
    if facts.steps:
        title = f"where the time of {facts.steps:,} training steps went"
        print_spans(span_figures(facts.spans), title)
        rate = facts.step_records / max(facts.step_s, 1e-9)
        cores = f"{facts.compute_cores:.1f} of {facts.num_cores} cores busy while computing"
        say(f"{rate:,.0f} records/s, {1e3 * facts.step_s:.2f} ms a step, {cores}")
    if IDLE in facts.spans:
        say("wait is the host's; idle, the device's, is what it costs")
    others = {
        "before the first batch": facts.before_s,
        "first step, not counted": facts.first_s,
        "validation": facts.validation_s,
        "between epochs": facts.outside_s,
    }
    long = [f"{name} {seconds:.2f} s" for name, seconds in others.items() if seconds >= 0.005]
    if long:
        say("; ".join(long))
    if facts.ranks > 1:
        say(f"figures of rank 0 of {facts.ranks}")
    verdicts = judge.script_verdicts(facts)
    if facts.steps:
        say("\nwhat to do, the most promising first" if verdicts else "\nno advice")
    _say_advice(verdicts)
    items, loader = facts.items, facts.loader
    for line in (*facts.lines, *(items.lines if items else ())):
        place = f"{step_rules.place_of(line)} in {line.function}"
        say(f"{100 * line.share:.0f} % of {PARTS[line.part]}: {place}: {line.text}")
    if facts.syncs:
        say("\n".join(sync_lines(facts.syncs, facts.gpu is not None)))
    if facts.waiting > 0.2 and items is not None and loader is not None:
        block = f"{{_target_: {loader.dataset}, ...}}"
        say(f"in Paceline: paceline train data=dataset 'data.train={block}'")
        if not items.refusal:
            pack = judge.pack_words(loader.dataset)
            say(f"  or pack the items once: {pack}, then data=hdf5 data.train=items.h5")


def watch_json(facts: ScriptFacts) -> dict[str, Any]:
    return {
        "limit": judge.script_limit(facts),
        "spans": span_figures(facts.spans),
        "step_s": facts.step_s,
        "records_per_s": facts.step_records / max(facts.step_s, 1e-9),
        "waiting": facts.waiting,
        "facts": {key: value for key, value in asdict(facts).items() if key != "spans"},
        "verdicts": [asdict(verdict) for verdict in judge.script_verdicts(facts)],
    }
