"""Print a diagnosis: what limits training, the parts, the advice, the calls that wait."""

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from framework.cli.arguments import config_flags
from framework.cli.tables import plural, print_table
from framework.commands.diagnose.try_advice import Applied, Diagnosis
from framework.diagnosis.facts import Facts, RankFacts
from framework.diagnosis.findings import TrainWords, Verdict, advice_lines, sync_lines
from framework.errors import say

# If other programs want a larger share of the cores, the figures are rough.
BUSY = 0.5


def show(diagnosis: Diagnosis, changed: TrainWords, config_dir: str | None) -> None:
    """Print the diagnosis. ``changed`` adds the overrides of advice to the words of ``train``."""
    facts = diagnosis.facts
    say(f"{diagnosis.limit}\n")
    heads = ["records/s", "ms a step"]
    print_table("each part alone, then all together", ["part"], heads, part_rows(facts), [""])
    say("\n".join([*fact_lines(facts), ""]))
    advice = [verdict for verdict in diagnosis.verdicts if verdict.is_advice]
    if advice:
        say("what to do, the most promising first")
    elif diagnosis.best is None:
        say("no change is certain to bring 3 % or more")
    else:
        say("no change is certain to bring 3 % or more; the most likely:")
        advice = [diagnosis.best]
    flags = config_flags(config_dir)
    for number, verdict in enumerate(advice, 1):
        say("\n".join(advice_lines(number, verdict, changed, flags)))
    if diagnosis.rejected:
        say(f"no certain gain: {'; '.join(map(_rejected, diagnosis.rejected))}")
    say("\n".join(sync_lines(facts.syncs, facts.cuda)))
    say(f"took {diagnosis.seconds:.0f} s")


def part_rows(facts: Facts) -> list[list[str]]:
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
    no_copy = "from page-locked memory" if facts.cuda else "the device is the host"
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


def fact_lines(facts: Facts) -> list[str]:
    """Return lines about the machine and the store."""
    machine, storage = facts.machine, facts.storage
    free = f"{machine.memory_bytes / 1e9:.1f} GB of memory free"
    lines = [f"machine: {machine.num_cores} cores, {free}, {machine.gpu or 'no GPU'}"]
    if machine.load > BUSY * machine.num_cores:
        lines.append(
            f"note: other programs wanted {machine.load:.1f} cores in the minute before, so these "
            "figures are rough"
        )
    if storage is None:
        return [*lines, "store: none; the source makes its own records"]
    records = f"{storage.num_records:,} records of {storage.record_bytes / 1e3:,.1f} kB"
    records += f", {storage.codec or storage.encoding}"
    if storage.image_size is not None:
        records += f", {storage.image_size[0]} x {storage.image_size[1]} pixels"
    if storage.chunk_records is not None:
        records += f", in chunks of {storage.chunk_records}"
    cached = "unknown" if storage.cached is None else f"{100 * storage.cached:.0f} %"
    place = f"disk: {storage.disk}; in the page cache: {cached}"
    return [*lines, f"store: {storage.path} ({storage.form}), {records}; {place}"]


def _rejected(verdict: Verdict) -> str:
    if verdict.failed:
        return f"{verdict.rule} ({verdict.failed})"
    if not verdict.tried:
        return f"{verdict.rule} (not tried; {verdict.gain:.2f} by the model)"
    return f"{verdict.rule} {verdict.gain:.2f} ± {verdict.spread:.2f}"


def show_applied(applied: Applied | None) -> None:
    """Print the predicted gain beside the measured one."""
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


def show_ranks(
    facts: RankFacts,
    verdicts: Sequence[Verdict],
    cause: Verdict | None,
    changed: TrainWords,
    config_dir: str | None,
) -> None:
    """Print the spans of all ranks, and the advice. ``changed`` is as in ``show``."""
    if cause is not None:
        say(f"{_limit_of(cause)}\n")
    title = f"a step of {facts.num_ranks} ranks, over {facts.num_steps} steps"
    rows: list[list[str]] = []
    for name, span in facts.spans.items():
        times = [f"{1e3 * seconds:,.2f}" for seconds in (span.min_s, span.median_s, span.max_s)]
        rows.append([name, *times, f"slowest: rank {span.rank}"])
    print_table(title, ["span"], ["min ms", "median ms", "max ms"], rows, [""])
    line = (
        f"{1e3 * facts.step_s:.2f} ms a step: exchanges alone {100 * facts.exchange_share:.0f} %, "
        f"waiting for ranks {100 * facts.waiting_share:.0f} %"
    )
    if facts.unsynced_s is not None:
        line += f", without exchange of gradients {1e3 * facts.unsynced_s:.2f} ms a step"
    say(f"{line}\n")
    if verdicts:
        say("what to do about the ranks, the most promising first")
    for number, verdict in enumerate(verdicts, 1):
        say("\n".join(advice_lines(number, verdict, changed, config_flags(config_dir))))


def ranks_as_json(
    facts: RankFacts,
    verdicts: Sequence[Verdict],
    cause: Verdict | None,
    words: Sequence[str],
    seconds: float,
) -> dict[str, Any]:
    """Return all facts and verdicts as plain values, named as those of one process."""
    return {
        "seconds": seconds,
        "command": ["paceline", "diagnose", *words],
        "cause": "" if cause is None else cause.rule,
        "limit": "" if cause is None else _limit_of(cause),
        "facts": {"ranks": facts.as_dict()},
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "rejected": [],
        "applied": None,
    }


def _limit_of(cause: Verdict) -> str:
    return f"Ranks limit training. {cause.says}"
