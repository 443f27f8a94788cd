"""Rules about a script that is not ours: what limits its steps, and what to change in it."""

import os
from typing import Any

from framework.commands.diagnose.verdict import Verdict
from framework.commands.watch.script_facts import LoaderFacts, ScriptFacts
from framework.contracts.span import shares

WORTH = 1.03
UNKNOWN = 0.0  # stands for a gain that nobody can predict
# If the shorter side of an image is so many times longer than needed, decoding is mostly wasted.
LARGE = 2.0
# A smaller share that does not grow with the batch is not worth advice.
FIXED_SHARE = 0.15
MOSTLY = 0.6
# What one thread copies out of memory, and the time of a small read.
GATHER_BYTES_PER_S = 2e9
GATHER_S = 30e-6
# If validation, or starting an epoch, takes a smaller share of the time, it is not worth advice.
OFTEN = 0.3
STARTS = 0.05
SLOW_COPY = 0.05
# If other programs keep a larger share of the cores busy, the figures are rough.
BUSY = 0.25
# If items hold Python's lock for a larger share of their time, threads would take turns.
LOCKED = 0.5
# A line of Python with a smaller share of a step is not worth advice.
LINE = 0.2
ROUGH = ("fewer_threads", "other_programs")  # causes beside which figures of computing are rough


def limit_of(facts: ScriptFacts) -> str:
    """Return the headline: the largest part of a step, and what removing the waiting would win."""
    if not facts.steps:
        return "No training step was seen: no DataLoader, backward pass and optimizer in turn."
    known = shares(facts.spans)
    largest = f"{facts.largest} takes {100 * known[facts.largest]:.0f} % of a step"
    most = f"up to {times(facts.headroom)} as fast if no step waited"
    if facts.data_limits:
        return f"Data limits training: {largest} ({most})."
    if facts.waiting > 1 - 1 / WORTH:
        waits = f"{100 * facts.waiting:.0f} % waits for data ({most})"
        return f"Computing limits training: {largest}, and {waits}."
    return f"Computing limits training: {largest}. Data is not the problem."


def times(factor: float) -> str:
    """Return a factor in words."""
    return f"{factor:.2f} times" if factor < 10 else f"{factor:.0f} times"


def predicted_step_s(
    facts: ScriptFacts,
    workers: int | None = None,
    load_s: float | None = None,
    persists: bool | None = None,
) -> float:
    """Return the seconds of a step with other workers, or with items that take other seconds.

    Args:
        facts: Of the script.
        workers: Worker processes.
        load_s: Seconds in which one process makes the items of a step.
        persists: Whether workers outlive an epoch.
    """
    loader = facts.loader or LoaderFacts(0, 1)
    workers = loader.workers if workers is None else workers
    load_s = facts.load_s if load_s is None else load_s
    persists = loader.persists if persists is None else persists
    compute_s = facts.compute_s
    if workers == 0:
        return compute_s + load_s
    busy = facts.items.cpu_share if facts.items else 1.0
    cores_s = load_s * busy + compute_s * min(facts.compute_cores, facts.num_cores)
    step_s = max(load_s / workers, compute_s, cores_s / facts.num_cores)
    return step_s if persists else step_s + facts.start_step_s


def gain(facts: ScriptFacts, **changes: Any) -> float:
    """Return the factor on the rate if arguments of ``predicted_step_s`` change."""
    factor = predicted_step_s(facts) / max(predicted_step_s(facts, **changes), 1e-9)
    return min(facts.headroom, factor)


def more_workers(facts: ScriptFacts) -> Verdict | None:
    """Detect steps that wait although there are fewer workers than cores."""
    loader = facts.loader
    if loader is None or loader.workers >= facts.num_cores or facts.headroom < WORTH:
        return None
    where = "the step's own process makes the items"
    if loader.workers:
        where = f"{loader.workers} workers make the items"
    return Verdict(
        "more_workers",
        f"num_workers={loader.workers}: {where}, on {facts.num_cores} cores, and "
        f"{100 * facts.waiting:.0f} % of a step waits for them.",
        f"Workers make items while the step computes.{_lock(facts)}",
        gain(facts, workers=facts.num_cores, persists=True),
        edit=f"DataLoader(..., num_workers={facts.num_cores}, persistent_workers=True)",
    )


def _lock(facts: ScriptFacts) -> str:
    """Return a sentence about Python's lock, if the items hold it."""
    if facts.items is None or facts.items.lock_share < LOCKED:
        return ""
    share = 100 * facts.items.lock_share
    return f" Items hold Python's lock {share:.0f} % of their time, and each worker has its own."


def fewer_workers(facts: ScriptFacts) -> Verdict | None:
    """Detect more workers than cores, which take the cores from the step."""
    loader = facts.loader
    if loader is None or loader.workers <= facts.num_cores:
        return None
    return Verdict(
        "fewer_workers",
        f"num_workers={loader.workers}: they share {facts.num_cores} cores with the step.",
        "More workers than cores only take turns, and cost memory and start-up time each.",
        UNKNOWN,
        edit=f"DataLoader(..., num_workers={facts.num_cores})",
    )


def persistent_workers(facts: ScriptFacts) -> Verdict | None:
    """Detect workers that are started anew in every epoch."""
    loader = facts.loader
    if loader is None or not loader.workers or loader.persists or facts.epochs < 2:
        return None
    share = min(1.0, facts.start_step_s / max(facts.step_s, 1e-9))
    if share < STARTS:
        return None
    return Verdict(
        "persistent_workers",
        f"Every epoch starts {loader.workers} new workers: {facts.start_s:.2f} s until its first "
        f"batch, {100 * share:.0f} % of the epoch.",
        "Keep the workers from epoch to epoch.",
        gain(facts, persists=True),
        edit="DataLoader(..., persistent_workers=True)",
    )


def smaller_images(facts: ScriptFacts) -> Verdict | None:
    """Detect images that are decoded much larger than the model sees them."""
    items = facts.items
    if items is None or items.decoded is None or items.size is None or facts.headroom < WORTH:
        return None
    side = min(items.decoded) / max(1, *items.size)
    if side < LARGE:
        return None
    left = 1 - items.decode_share * (1 - 1 / side**1.5)
    needed = max(items.size)
    return Verdict(
        "smaller_images",
        f"Images of {items.decoded[0]} x {items.decoded[1]} pixels are decoded whole, "
        f"{1e3 * items.item_s * items.decode_share:.1f} ms each, and the items hold "
        f"{items.size[0]} x {items.size[1]}.",
        "Store the images at the size that the crop needs, or let the JPEG decoder scale.",
        gain(facts, load_s=left * facts.load_s),
        edit=f'image.draft("RGB", ({2 * needed}, {2 * needed})) after Image.open(...)',
    )


def pack_items(facts: ScriptFacts) -> Verdict | None:
    """Detect a Dataset that makes the same items in every epoch."""
    items = facts.items
    if items is None or items.refusal or not items.item_bytes or facts.loader is None:
        return None
    if facts.headroom < WORTH:
        return None
    load_s = facts.step_records * (GATHER_S + items.item_bytes / GATHER_BYTES_PER_S)
    size = f"{items.num_items * items.item_bytes / 1e6:,.0f} MB"
    return Verdict(
        "pack_items",
        f"Every epoch makes the same items again: {1e3 * items.item_s:.2f} ms each. Reading "
        "some of them twice gave the same bytes.",
        f"Pack them once ({size}), and train on the store.",
        gain(facts, load_s=min(load_s, facts.load_s)),
        edit=pack_words(facts.loader.dataset),
    )


def pack_words(dataset: str) -> str:
    """Return the command that packs the items of a Dataset; its arguments stand for the dots."""
    block = f"{{_target_: {dataset}, ...}}"
    return f"paceline pack input=dataset 'input.dataset={block}' output.path=items.h5"


def larger_batch(facts: ScriptFacts) -> Verdict | None:
    """Detect that much of a step does not depend on the number of records."""
    fixed = facts.fixed_share
    share = 1 - facts.waiting
    if fixed is None or fixed < FIXED_SHARE or share < MOSTLY:
        return None
    batch = facts.loader.batch_size if facts.loader else None
    edit = f"batch_size={2 * batch}" if batch else "batches of twice the size in the Dataset"
    batch = batch or round(facts.step_records)
    factor = 2 / (2 - fixed)
    return Verdict(
        "larger_batch",
        f"{100 * fixed:.0f} % of the model's time does not grow with the batch of {batch}.",
        "Double the batch, so that twice the records share this cost, and try to double the "
        "learning rate.",
        1 / (share / factor + 1 - share),
        edit=edit,
        learns=True,
    )


def python_lines(facts: ScriptFacts) -> Verdict | None:
    """Detect a line of the script's own Python that takes much of a step."""
    if not facts.lines or facts.lines[0].share < LINE or facts.data_limits:
        return None
    line = facts.lines[0]
    place = f"{os.path.relpath(line.file)}:{line.line} in {line.function}"
    return Verdict(
        "python_lines",
        f"{place} takes {100 * line.share:.0f} % of a step, outside of torch: {line.text}",
        "Python and what it calls run on one core here, while the device and other cores wait.",
        UNKNOWN,
        edit="operators on whole batches, or do it in the Dataset, where workers share it",
    )


def fewer_threads(facts: ScriptFacts) -> Verdict | None:
    """Detect that torch uses more threads than there are cores."""
    if facts.num_threads <= facts.num_cores or facts.gpu is not None:
        return None
    return Verdict(
        "fewer_threads",
        f"Torch uses {facts.num_threads} threads for an operator on {facts.num_cores} cores.",
        "Threads that share a core wait for each other at the end of every operator.",
        UNKNOWN,
        edit=f"torch.set_num_threads({facts.num_cores}), or OMP_NUM_THREADS={facts.num_cores}",
    )


def other_programs(facts: ScriptFacts) -> Verdict | None:
    """Detect other programs that take cores from the threads of an operator."""
    if facts.others_cores < BUSY * facts.num_cores or facts.gpu is not None:
        return None
    return Verdict(
        "other_programs",
        f"Other programs kept {facts.others_cores:.1f} of {facts.num_cores} cores busy.",
        "The threads of an operator wait for each other, and for their turn. Figures are rough.",
        UNKNOWN,
        edit="OMP_NUM_THREADS=1 before the command, or run it alone",
    )


def pinned_memory(facts: ScriptFacts) -> Verdict | None:
    """Detect batches that are copied to the GPU from pageable memory."""
    copy = shares(facts.spans).get("copy", 0.0)
    if facts.gpu is None or facts.loader is None or facts.loader.pins or copy < SLOW_COPY:
        return None
    return Verdict(
        "pinned_memory",
        f"Copying to the GPU takes {100 * copy:.0f} % of a step, from pageable memory.",
        "Copy from page-locked memory, while the GPU still computes.",
        1 / (1 - copy / 2),
        edit="DataLoader(..., pin_memory=True) and batch.to(device, non_blocking=True)",
    )


def rarer_validation(facts: ScriptFacts) -> Verdict | None:
    """Detect that validation takes a large part of the time."""
    whole_s = facts.step_s * facts.steps + facts.validation_s + facts.outside_s
    share = facts.validation_s / max(whole_s, 1e-9)
    if share < OFTEN:
        return None
    return Verdict(
        "rarer_validation",
        f"Validation takes {100 * share:.0f} % of the time.",
        "Validate half as often, or give the validation DataLoader workers too.",
        1 / (1 - share / 2),
        edit="validate in every second epoch",
    )


RULES = (
    more_workers,
    fewer_workers,
    persistent_workers,
    smaller_images,
    pack_items,
    larger_batch,
    python_lines,
    fewer_threads,
    other_programs,
    pinned_memory,
    rarer_validation,
)


def script_verdicts(facts: ScriptFacts) -> list[Verdict]:
    """Return advice that is worth following, the most promising first.

    If computing limits, what makes its figures rough comes before all others.
    """
    if not facts.steps:
        return []
    verdicts = [verdict for rule in RULES if (verdict := rule(facts)) is not None]
    worth = [verdict for verdict in verdicts if verdict.gain >= WORTH or verdict.gain == UNKNOWN]
    first = () if facts.data_limits else ROUGH
    return sorted(worth, key=lambda verdict: (verdict.rule not in first, -verdict.gain))
