"""Rules about workers, their kind, reading ahead, and where augmentation runs."""

from framework.commands.diagnose.facts import DiagnosisFacts, gain, gain_of_measured
from framework.commands.diagnose.verdict import Verdict

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
# Transforms that an augment can do on the device.
ON_DEVICE = {"flip"}


def waiting(facts: DiagnosisFacts) -> str:
    """Return a sentence that compares preparing and computing a batch."""
    rates = facts.rates
    return (
        f"One thread prepares a batch in {facts.step_ms(rates.prepare or rates.loader):.1f} ms, "
        f"and computing takes {facts.step_ms(rates.compute):.1f} ms."
    )


def raise_workers(facts: DiagnosisFacts) -> Verdict | None:
    """Detect steps that wait although there are fewer workers than cores."""
    settings = facts.settings
    wanted = facts.machine.num_cores
    if not facts.slow_rate or settings.staged or facts.load_s < LEAST_SHARED_S:
        return None
    is_locked = facts.lock_share > LOCKED and settings.kind == "thread"  # see `processes`
    if settings.workers >= wanted or is_locked:
        return None
    return Verdict(
        "raise_workers",
        f"{_few_workers(settings.workers, wanted)} {waiting(facts)}",
        f"Use {wanted} workers, which share the work and prepare records while the step computes.",
        gain(facts, workers=wanted),
        (f"workers.num={wanted}",),
    )


def _few_workers(num_workers: int, num_cores: int) -> str:
    if num_workers == 0:
        return f"No workers: the step's own thread prepares the records, on {num_cores} cores."
    if num_workers == 1:
        return f"Only one worker prepares records, on {num_cores} cores."
    return f"Only {num_workers} workers prepare records on {num_cores} cores."


def lower_workers(facts: DiagnosisFacts) -> Verdict | None:
    """Detect more workers than cores: they take the cores from each other and from the step."""
    settings = facts.settings
    rates = facts.rates
    num_cores = facts.machine.num_cores
    if settings.workers <= num_cores:
        return None
    is_locked = facts.lock_share > LOCKED or settings.has_function or rates.prepare is None
    overrides = (f"workers.num={num_cores}",)
    if settings.kind != "thread" and not is_locked:
        overrides += ("workers.kind=thread",)
    return Verdict(
        "lower_workers",
        f"{settings.workers} workers share {num_cores} cores with the step: computing alone does "
        f"{rates.compute:,.0f} records/s, with the workers {rates.whole:,.0f}.",
        f"Use {num_cores} workers; more of them only take turns, and cost memory and start-up "
        "time each.",
        # The model cannot predict this. A gain slightly above 1 gets it tried.
        1 + 0.01 * settings.workers / num_cores,
        overrides,
    )


def no_workers(facts: DiagnosisFacts) -> Verdict | None:
    """Detect workers that together prepare fewer records than one thread does."""
    settings = facts.settings
    rate = facts.slow_rate
    num_cores = facts.machine.num_cores
    if rate is None or settings.workers == 0 or settings.has_function:
        return None
    too_many = settings.workers > num_cores
    if rate < CLEARLY * facts.rates.loader or (too_many and settings.kind == "thread"):
        return None  # for too many threads, see `lower_workers`
    cores = f" on {num_cores} cores" if too_many else ""
    reason = "handing a batch over costs more than preparing it"
    if settings.kind == "process":
        reason = "each process opens, decodes and caches by itself, and its batches are copied"
    overrides = ("workers.num=0",)
    if settings.loader == "plain":
        overrides += ("loader=prefetch",)
    return Verdict(
        "no_workers",
        f"One thread prepares {rate:,.0f} records/s, but {settings.workers} workers"
        f"{cores} and the loader only {facts.rates.loader:,.0f}: {reason}.",
        "Use no workers; loader=prefetch reads ahead without them.",
        gain_of_measured(facts, workers=0, ahead=True),
        overrides,
    )


def processes(facts: DiagnosisFacts) -> Verdict | None:
    """Detect preparing that holds Python's lock, or runs a Python function that may hold it."""
    settings = facts.settings
    rate = facts.slow_rate
    rate_of_two = facts.rates.prepare_two
    num_cores = facts.machine.num_cores
    if settings.staged or (settings.kind == "process" and settings.workers):
        return None
    if slowed_step(facts):  # the same advice
        return None
    is_locked = max(facts.lock_share, facts.function_share) > LOCKED
    if rate is None or rate_of_two is None or not is_locked:
        return None
    holder = "Reading"
    if settings.has_function:
        share = 100 * facts.function_share
        holder = f"The transform's Python function ({share:.0f} % of preparing a record)"
    return Verdict(
        "processes",
        f"{holder} holds Python's lock, so threads take turns: one thread prepares "
        f"{rate:,.0f} records/s, two together {rate_of_two:,.0f}. {waiting(facts)}",
        f"Use {num_cores} processes, which have a lock each and do not block the step.",
        gain(facts, kind="process", workers=num_cores),
        ("workers.kind=process", f"workers.num={num_cores}"),
    )


def slowed_step(facts: DiagnosisFacts) -> Verdict | None:
    """Detect steps that hardly wait for data, but compute longer while it is read."""
    settings = facts.settings
    rates = facts.rates
    num_cores = facts.machine.num_cores
    if not facts.slow_rate or not facts.mostly_slowed or settings.staged:
        return None
    if settings.workers > num_cores:  # see `lower_workers`
        return None
    if facts.lock_share > LOCKED and CLEARLY * rates.loader < rates.compute:  # see `processes`
        return None
    use = facts.on_machine.use if facts.on_machine else None
    lacks_core = use is not None and use.own_cores + use.waited_cores > ALL_CORES * num_cores
    others: list[str] = []
    if not lacks_core and (settings.workers == 0 or settings.kind == "thread"):
        num = max(1, num_cores - 1)
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
    step_s = settings.batch_size / rates.whole
    left = max(1 - (facts.beside_s - facts.alone_s) / step_s, 1 / MOST_GAIN)
    return Verdict(
        "slowed_step",
        f"Reading slows the step by {100 * facts.slowed_share:.0f} %: forward, backward and "
        f"optimizer take {1e3 * facts.alone_s:.1f} ms on a batch that stays on the device, and "
        f"{1e3 * facts.beside_s:.1f} ms while data is read.",
        f"{advice}{''.join(f'; or try {other}' for other in others)}.",
        min(facts.headroom, 1 / left),
        overrides,
    )


def threads(facts: DiagnosisFacts) -> Verdict | None:
    """Detect processes that copy each batch although nothing holds Python's lock."""
    settings = facts.settings
    rate = facts.slow_rate
    if settings.kind != "process" or not 0 < settings.workers <= facts.machine.num_cores:
        return None
    if rate is None or facts.lock_share > LOCKED or settings.has_function:
        return None
    return Verdict(
        "threads",
        f"{settings.workers} worker processes copy each batch although nothing holds Python's "
        f"lock: one thread prepares {rate:,.0f} records/s, two "
        f"{facts.rates.prepare_two or 0:,.0f}.",
        "Use threads, which share the batch's memory and need none of their own.",
        max(1.01, gain(facts, kind="thread")),
        ("workers.kind=thread",),
    )


def prefetch(facts: DiagnosisFacts) -> Verdict | None:
    """Detect a loader that reads nothing ahead of the step."""
    settings = facts.settings
    if settings.loader != "plain" or not facts.data_limits:
        return None
    if settings.workers == 0 and raise_workers(facts):
        return None  # several workers read ahead, too
    loader = "stream" if facts.cuda else "prefetch"
    return Verdict(
        "prefetch",
        f"With loader=plain, each step waits until its batch is prepared. {waiting(facts)}",
        f"Use loader={loader}, whose thread keeps batches ready while the step computes.",
        gain(facts, ahead=True),
        (f"loader={loader}",),
    )


def stream(facts: DiagnosisFacts) -> Verdict | None:
    """Detect a step that waits for the copy to the device."""
    rates = facts.rates
    if not facts.cuda or rates.copy is None or facts.settings.loader in ("stream", "plain"):
        return None
    copying = rates.whole / rates.copy  # as a share of the step
    if copying < COPY_SHARE:
        return None
    return Verdict(
        "stream",
        f"The step waits for its copy to the device: {facts.step_ms(rates.copy):.1f} of "
        f"{facts.step_ms(rates.whole):.1f} ms.",
        "Use loader=stream, which copies the next batch while the step computes.",
        1 / (1 - copying),
        ("loader=stream",),
        parts=("copy",),
    )


def augment_on_device(facts: DiagnosisFacts) -> Verdict | None:
    """Detect augmentation that the host does by record, and the device could do by batch."""
    settings = facts.settings
    rate_of_plain = facts.rates.prepare_plain
    if not facts.slow_rate or not facts.cuda:
        return None
    if settings.has_function and rate_of_plain:
        return Verdict(
            "augment_on_device",
            f"The transform's function takes {100 * facts.function_share:.0f} % of preparing a "
            "record on the host.",
            f"Move it to {facts.machine.gpu}, which processes a whole batch in one call.",
            gain(facts, load_s=settings.batch_size / rate_of_plain),
            edit="an augment (uint8 [B, C, H, W] on the device) that does what the function does: "
            "augment=color_jitter, crop_flip, random_erasing, or your own class with "
            "__call__(batch, draws)",
            learns=True,
        )
    if settings.transform not in ON_DEVICE or settings.augment != "normalize":
        return None
    return Verdict(
        "augment_on_device",
        f"transform={settings.transform} changes the pixels on the host. {waiting(facts)}",
        f"Move it to {facts.machine.gpu}, which processes a whole batch in one call; the host "
        "then only copies raw records.",
        gain(facts, load_s=facts.load_s / 2),
        ("transform=none", "augment=crop_flip", "augment.padding=0"),
        learns=True,
    )


PARTS = ("wait",)
RULES = (
    raise_workers,
    lower_workers,
    no_workers,
    processes,
    slowed_step,
    threads,
    prefetch,
    stream,
    augment_on_device,
)
