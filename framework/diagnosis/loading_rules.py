"""Rules about workers, their kind, reading ahead, and where augmentation runs."""

import math
from collections.abc import Iterator

from framework.diagnosis.facts import Facts
from framework.diagnosis.findings import Verdict
from framework.diagnosis.step_load import gain

# If Python's lock is held for a larger share of preparing, a second thread brings less than half
# of what it should.
LOCKED = 0.5
# If preparing a batch takes less, handing it over to workers is not worth it.
LEAST_SHARED_S = 2e-3
# The least factor between two rates that counts as clearly faster.
CLEARLY = 1.2
# If copying takes a smaller share of the step, overlapping it brings nothing.
COPY_SHARE = 0.02
# If training wants a larger share of the cores, a slow step lacks a core rather than a lock.
ALL_CORES = 0.9
MOST_GAIN = 10.0  # of a step that reading no longer slows


def waiting(facts: Facts) -> str:
    """Return a sentence that compares preparing and computing a batch."""
    rates = facts.rates
    return (
        f"One thread prepares a batch in {facts.step_ms(rates.prepare or rates.loader):.1f} ms, "
        f"and computing takes {facts.step_ms(rates.compute):.1f} ms."
    )


def _needs_workers(facts: Facts) -> bool:
    is_locked = facts.lock_share > LOCKED and facts.settings.kind == "thread"  # see `processes`
    is_work = facts.slow_rate and not facts.settings.staged and facts.load_s >= LEAST_SHARED_S
    return bool(is_work) and facts.settings.workers < facts.machine.num_cores and not is_locked


def few_workers(facts: Facts) -> Iterator[Verdict]:
    """Detect steps that wait although there are fewer workers than cores."""
    workers, cores = facts.settings.workers, facts.machine.num_cores
    if _needs_workers(facts):
        few = f"Only {workers} workers prepare records on {cores} cores."
        if workers == 0:
            few = f"No workers: the step's own thread prepares the records, on {cores} cores."
        elif workers == 1:
            few = f"Only one worker prepares records, on {cores} cores."
        yield Verdict(
            "raise_workers",
            f"{few} {waiting(facts)}",
            f"Use {cores} workers, which share the work and prepare records while the step "
            "computes.",
            gain(facts, workers=cores),
            (f"workers.num={cores}",),
        )


def useless_workers(facts: Facts) -> Iterator[Verdict]:
    """Detect more workers than cores, workers that are slower than one thread, and processes
    that copy each batch although nothing holds Python's lock.
    """
    settings, rates, cores = facts.settings, facts.rates, facts.machine.num_cores
    is_locked = facts.lock_share > LOCKED or settings.has_function
    too_many = settings.workers > cores
    if too_many:
        overrides = (f"workers.num={cores}",)
        if settings.kind != "thread" and not is_locked and rates.prepare is not None:
            overrides += ("workers.kind=thread",)
        yield Verdict(
            "lower_workers",
            f"{settings.workers} workers share {cores} cores with the step: computing alone does "
            f"{rates.compute:,.0f} records/s, with the workers {rates.whole:,.0f}.",
            f"Use {cores} workers; more of them only take turns, and cost memory and start-up "
            "time each.",
            # The model cannot predict this. A gain slightly above 1 gets it tried.
            1 + 0.01 * settings.workers / cores,
            overrides,
        )
    rate = facts.slow_rate
    if rate is None or settings.workers == 0 or settings.has_function:
        return
    if rate >= CLEARLY * rates.loader and not (too_many and settings.kind == "thread"):
        reason = "handing a batch over costs more than preparing it"
        if settings.kind == "process":
            reason = "each process opens, decodes and caches by itself, and its batches are copied"
        overrides = ("workers.num=0",)
        if settings.loader == "plain":
            overrides += ("loader=prefetch",)
        yield Verdict(
            "no_workers",
            f"One thread prepares {rate:,.0f} records/s, but {settings.workers} workers"
            f"{f' on {cores} cores' if too_many else ''} and the loader only "
            f"{rates.loader:,.0f}: {reason}.",
            "Use no workers; loader=prefetch reads ahead without them.",
            gain(facts, measured=True, workers=0, ahead=True),
            overrides,
        )
    if settings.kind == "process" and not too_many and not is_locked:
        yield Verdict(
            "threads",
            f"{settings.workers} worker processes copy each batch although nothing holds Python's "
            f"lock: one thread prepares {rate:,.0f} records/s, two {rates.prepare_two or 0:,.0f}.",
            "Use threads, which share the batch's memory and need none of their own.",
            max(1.01, gain(facts, kind="thread")),
            ("workers.kind=thread",),
        )


def locked_threads(facts: Facts) -> Iterator[Verdict]:
    """Detect preparing that holds Python's lock, or slows the step that computes beside it."""
    settings, cores = facts.settings, facts.machine.num_cores
    slowed = slowed_step(facts)
    if slowed is not None:
        yield slowed
        return  # the same advice
    if settings.staged or (settings.kind == "process" and settings.workers):
        return
    rate, rate_of_two = facts.slow_rate, facts.rates.prepare_two
    if rate and rate_of_two and max(facts.lock_share, facts.function_share) > LOCKED:
        holder = "Reading"
        if settings.has_function:
            share = 100 * facts.function_share
            holder = f"The transform's Python function ({share:.0f} % of preparing a record)"
        yield Verdict(
            "processes",
            f"{holder} holds Python's lock, so threads take turns: one thread prepares "
            f"{rate:,.0f} records/s, two together {rate_of_two:,.0f}. {waiting(facts)}",
            f"Use {cores} processes, which have a lock each and do not block the step.",
            gain(facts, kind="process", workers=cores),
            ("workers.kind=process", f"workers.num={cores}"),
        )


def slowed_step(facts: Facts) -> Verdict | None:
    """Detect steps that hardly wait for data, but compute longer while it is read."""
    settings, rates, cores = facts.settings, facts.rates, facts.machine.num_cores
    if not facts.slow_rate or not facts.mostly_slowed or settings.staged:
        return None
    if settings.workers > cores:  # see `lower_workers`
        return None
    if facts.lock_share > LOCKED and CLEARLY * rates.loader < rates.compute:  # see `processes`
        return None
    use = facts.on_machine.use
    lacks_core = use.own_cores + use.waited_cores > ALL_CORES * cores
    others: list[str] = []
    if not lacks_core and (settings.workers == 0 or settings.kind == "thread"):
        num = max(1, cores - 1)
        advice = f"Read in processes ({num}), which do not take Python's lock from the step"
        overrides = ("workers.kind=process", f"workers.num={num}")
        others += ["fewer threads"] if settings.workers > 1 else []
    elif facts.cuda and settings.workers > 1:
        num = settings.workers // 2
        advice = f"Use {num} workers, which leave cores to the thread that launches kernels"
        overrides = (f"workers.num={num}",)
    else:  # all cores compute or read: see `storage_rules`
        return None
    if facts.storage is not None and facts.storage.encoding == "image":
        others += ["images packed smaller (pack.resize) or as pixels (pack.encode=raw)"]
        others += ["data=dali"] if facts.cuda else []
    left = max(1 - (facts.beside_s - facts.alone_s) / facts.step_s, 1 / MOST_GAIN)
    return Verdict(
        "slowed_step",
        f"Reading slows the step by {100 * facts.slowed_share:.0f} %: forward, backward and "
        f"optimizer take {1e3 * facts.alone_s:.1f} ms on a batch that stays on the device, and "
        f"{1e3 * facts.beside_s:.1f} ms while data is read.",
        f"{advice}{''.join(f'; or try {other}' for other in others)}.",
        min(facts.headroom, 1 / left),
        overrides,
    )


def prefetch(facts: Facts) -> Iterator[Verdict]:
    """Detect a loader that reads nothing ahead of the step. Several workers read ahead, too."""
    if facts.settings.workers == 0 and _needs_workers(facts):
        return
    if facts.settings.loader == "plain" and facts.data_limits:
        loader = "stream" if facts.cuda else "prefetch"
        yield Verdict(
            "prefetch",
            f"With loader=plain, each step waits until its batch is prepared. {waiting(facts)}",
            f"Use loader={loader}, whose thread keeps batches ready while the step computes.",
            gain(facts, ahead=True),
            (f"loader={loader}",),
        )


def beside_a_gpu(facts: Facts) -> Iterator[Verdict]:
    """Detect a step that waits for its copy, and what the GPU could augment batch by batch."""
    settings, rates = facts.settings, facts.rates
    if not facts.cuda:
        return
    copy = rates.copy or math.inf
    copying = rates.whole / copy  # as a share of the step
    if copying >= COPY_SHARE and settings.loader not in ("stream", "plain"):
        yield Verdict(
            "stream",
            f"The step waits for its copy to the device: {facts.step_ms(copy):.1f} of "
            f"{facts.step_ms(rates.whole):.1f} ms.",
            "Use loader=stream, which copies the next batch while the step computes.",
            1 / (1 - copying),
            ("loader=stream",),
            parts=("copy",),
        )
    move = f"Move it to {facts.machine.gpu}, which processes a whole batch in one call"
    if facts.slow_rate and settings.has_function and rates.prepare_plain:
        yield Verdict(
            "augment_on_device",
            f"The transform's function takes {100 * facts.function_share:.0f} % of preparing a "
            "record on the host.",
            f"{move}.",
            gain(facts, load_s=settings.batch_size / rates.prepare_plain),
            edit="an augment (uint8 [B, C, H, W] on the device) that does what the function does: "
            "augment=color_jitter, crop_flip, random_erasing, or your own class with "
            "__call__(batch, draws)",
            learns=True,
        )
    elif facts.slow_rate and settings.transform == "flip" and settings.augment == "normalize":
        yield Verdict(
            "augment_on_device",
            f"transform=flip changes the pixels on the host. {waiting(facts)}",
            f"{move}; the host then only copies raw records.",
            gain(facts, load_s=facts.load_s / 2),
            ("transform=none", "augment=crop_flip", "augment.padding=0"),
            learns=True,
        )


RULES = (few_workers, useless_workers, locked_threads, prefetch, beside_a_gpu)
