"""Rules about who reads when: workers, their kind, reading ahead, where augmentation is done. Each: Facts -> Verdict, or None."""

from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.model_facts import gain, load_of
from framework.commands.diagnose.verdict import Verdict

LOCKED = (
    0.5  # of preparing a record: beyond it a second thread brings less than half of what it should
)
LEAST_SHARED_S = 2e-3  # of preparing a step's records: less is not worth handing over to workers
CLEARLY = 1.2  # times as fast
COPY_SHARE = 0.02  # of a step
ON_DEVICE = {"flip"}  # transforms that an augment does as well


def _per_step_ms(facts: DiagnosisFacts, rate: float) -> str:
    return f"{1e3 * facts.settings.batch_size / rate:.1f} ms"


def waiting(facts: DiagnosisFacts) -> str:
    rates = facts.rates
    prepare = rates.prepare or rates.loader
    return (
        f"a step's records take one thread {_per_step_ms(facts, prepare)} to prepare, computing takes "
        f"{_per_step_ms(facts, rates.compute)}, and {100 * rates.wait:.0f} % of the step is spent waiting"
    )


def raise_workers(facts: DiagnosisFacts) -> Verdict | None:
    """Fewer readers than cores while steps wait."""
    settings, num_cores = facts.settings, facts.machine.num_cores
    wanted = max(1, num_cores)
    if (
        not facts.data_limits
        or facts.rates.prepare is None
        or settings.workers >= wanted
        or settings.staged
    ):
        return None
    now = (
        "no workers: records are prepared in the step's own thread"
        if settings.workers == 0
        else f"only {settings.workers} workers"
    )
    if facts.lock_share > LOCKED and settings.kind == "thread":
        return None  # more threads would not help; see processes
    if settings.batch_size / facts.rates.prepare < LEAST_SHARED_S:
        return None
    return Verdict(
        "raise_workers",
        f"{now}, on {num_cores} cores; {waiting(facts)}",
        f"{wanted} workers share the work and prepare while the step computes",
        gain(facts, workers=wanted),
        (f"workers.num={wanted}",),
    )


def lower_workers(facts: DiagnosisFacts) -> Verdict | None:
    """More readers than cores: they take the cores from each other and from the step."""
    settings, num_cores = facts.settings, facts.machine.num_cores
    if settings.workers <= num_cores:
        return None
    locked = facts.lock_share > LOCKED or settings.has_function or facts.rates.prepare is None
    kind = () if settings.kind == "thread" or locked else ("workers.kind=thread",)
    return Verdict(
        "lower_workers",
        f"{settings.workers} workers on {num_cores} cores; computing alone does {facts.rates.compute:,.0f} records/s, "
        f"with the workers {facts.rates.whole:,.0f}",
        "workers beyond the cores only take turns, and take them from the step too; memory and start-up grow with each",
        1 + 0.01 * settings.workers / num_cores,  # no model of this is any good: it is tried
        (f"workers.num={num_cores}", *kind),
    )


def no_workers(facts: DiagnosisFacts) -> Verdict | None:
    """Workers that together do less than one thread: handing a batch over costs more than gathering it, or each does the same work again."""
    settings, rates = facts.settings, facts.rates
    if (
        settings.workers == 0
        or rates.prepare is None
        or rates.prepare < CLEARLY * rates.loader
        or not facts.data_limits
    ):
        return None
    if settings.has_function:
        return None
    if settings.workers > facts.machine.num_cores and settings.kind == "thread":
        return None
    cores = (
        f" on {facts.machine.num_cores} cores" if settings.workers > facts.machine.num_cores else ""
    )
    why = (
        "handing over costs more than the work"
        if settings.kind == "thread"
        else "each process opens, decodes and caches for itself, and its batches are copied"
    )
    return Verdict(
        "no_workers",
        f"one thread prepares {rates.prepare:,.0f} records/s, {settings.workers} workers{cores} and the loader only {rates.loader:,.0f}",
        f"{why}; loader=prefetch reads ahead without workers",
        gain(facts, workers=0, ahead=True),
        ("workers.num=0", *(("loader=prefetch",) if settings.loader == "plain" else ())),
    )


def processes(facts: DiagnosisFacts) -> Verdict | None:
    """Preparing holds Python's lock, or is mostly a function that may: threads take turns, with each other and with the step."""
    settings, rates = facts.settings, facts.rates
    if (
        (settings.kind == "process" and settings.workers > 0)
        or settings.staged
        or not facts.data_limits
    ):
        return None
    if (
        rates.prepare is None
        or rates.prepare_two is None
        or max(facts.lock_share, facts.function_share) <= LOCKED
    ):
        return None
    share = f" ({100 * facts.function_share:.0f} % of preparing a record)"
    who = f"the transform's Python function{share}" if settings.has_function else "reading"
    return Verdict(
        "processes",
        f"{who} keeps threads in turn by Python's lock: one thread prepares {rates.prepare:,.0f} records/s, two together "
        f"{rates.prepare_two:,.0f}; {waiting(facts)}",
        "processes have a lock each; threads take turns, and the step waits for its turn too",
        gain(facts, kind="process", workers=facts.machine.num_cores),
        ("workers.kind=process", f"workers.num={facts.machine.num_cores}"),
    )


def threads(facts: DiagnosisFacts) -> Verdict | None:
    """Processes although nothing holds Python's lock: each batch is copied between them."""
    settings = facts.settings
    if (
        settings.kind != "process"
        or not 0 < settings.workers <= facts.machine.num_cores
        or not facts.data_limits
    ):
        return None
    if facts.rates.prepare is None or facts.lock_share > LOCKED or settings.has_function:
        return None
    return Verdict(
        "threads",
        f"{settings.workers} worker processes, though two threads prepare {facts.rates.prepare_two or 0:,.0f} records/s, one "
        f"{facts.rates.prepare:,.0f}: nothing holds Python's lock",
        "threads share a batch and hand it over without a copy, and take no memory of their own",
        max(1.01, gain(facts, kind="thread")),
        ("workers.kind=thread",),
    )


def prefetch(facts: DiagnosisFacts) -> Verdict | None:
    """Nothing reads ahead of the step."""
    if facts.settings.loader != "plain" or not facts.data_limits:
        return None
    if facts.settings.workers == 0 and raise_workers(facts) is not None:
        return None  # workers read ahead too, and are more than one
    return Verdict(
        "prefetch",
        f"loader=plain takes each batch when the step wants it; {waiting(facts)}",
        "a thread keeps batches ready while the step computes",
        gain(facts, ahead=True),
        ("loader=stream" if facts.cuda else "loader=prefetch",),
    )


def stream(facts: DiagnosisFacts) -> Verdict | None:
    """The copy to the device is in line with the step."""
    rates = facts.rates
    if (
        facts.settings.loader == "stream"
        or not facts.cuda
        or rates.copy is None
        or facts.settings.loader == "plain"
    ):
        return None
    step_s, copy_s = 1 / rates.whole, 1 / rates.copy
    if copy_s < COPY_SHARE * step_s:
        return None
    return Verdict(
        "stream",
        f"copying a step's records to the device takes {_per_step_ms(facts, rates.copy)} of the step's {_per_step_ms(facts, rates.whole)}",
        "copies run beside the computation, in a stream of their own",
        min(facts.headroom, step_s / (step_s - copy_s)),
        ("loader=stream",),
    )


def augment_on_device(facts: DiagnosisFacts) -> Verdict | None:
    """Random changes on the host that the device does for a whole batch at once."""
    settings, rates = facts.settings, facts.rates
    if not facts.data_limits or not facts.cuda or rates.prepare is None:
        return None
    load = load_of(facts)
    if settings.has_function and rates.prepare_plain is not None and load is not None:
        return Verdict(
            "augment_on_device",
            f"the transform's function takes {100 * facts.function_share:.0f} % of preparing a record on the host",
            f"{facts.machine.gpu} changes a whole batch in one call",
            gain(facts, load_s=settings.batch_size / rates.prepare_plain),
            edit="do in an augment (uint8 [B, C, H, W] on the device) what the function does: augment=color_jitter, crop_flip, "
            "random_erasing, or your own class with __call__(batch, draws)",
            learns=True,
        )
    if settings.transform not in ON_DEVICE or settings.augment != "normalize" or load is None:
        return None
    return Verdict(
        "augment_on_device",
        f"transform={settings.transform} changes pixels on the host; {waiting(facts)}",
        f"{facts.machine.gpu} does it for a whole batch in one call, and raw records are then only gathered",
        gain(facts, load_s=load.load_s / 2),
        ("transform=none", "augment=crop_flip", "augment.padding=0"),
        learns=True,
    )


RULES = (
    raise_workers,
    lower_workers,
    no_workers,
    processes,
    threads,
    prefetch,
    stream,
    augment_on_device,
)
