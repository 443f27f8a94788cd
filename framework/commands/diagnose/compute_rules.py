"""Rules about computing, which is what remains when no step waits for data."""

import os

from framework.commands.diagnose.facts import TINY, DiagnosisFacts, computing_gain
from framework.commands.diagnose.verdict import Verdict

# Computing faster shows only if computing takes a larger share of a step.
MOSTLY = 0.6
# With a smaller headroom, data is not what limits training, although advice may still gain.
FINE = 1.2
# A smaller share of a step that does not grow with the batch is not worth advice.
FIXED_SHARE = 0.25
# How many times as large a batch may become.
MOST_LARGER = 8
MOST_LARGER_TINY = 64
# What a wait for a GPU and the launches after it take at least. Assumed; no GPU measured it.
SYNC_S = 2e-5
SYNC_SHARE = 0.05  # of a step; less is not worth advice
MOST_SYNC_SHARE = 0.9


def data_is_fine(facts: DiagnosisFacts) -> Verdict | None:
    """Detect a run that no change to the data can make much faster."""
    if facts.headroom > FINE:
        return None
    percent = max(1, round(100 * (facts.headroom - 1)))
    rates = facts.rates
    return Verdict(
        "data_is_fine",
        f"Data is not your problem: at most {percent} % to win. Repeating one batch does "
        f"{rates.compute:,.0f} records/s, training {rates.whole:,.0f}.",
        "Change the model, its precision or the batch size; no loader, format or number of "
        "workers can win more.",
        facts.headroom,
    )


def amp(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that computing is in single precision on hardware that is faster in half precision."""
    machine = facts.machine
    is_fast = facts.cuda or machine.bf16
    if facts.settings.precision != "fp32" or not is_fast or not _mostly_computing(facts):
        return None
    dtype = "bf16" if machine.bf16 else "fp16"
    return Verdict(
        "amp",
        f"Computing takes {100 * facts.computing_share:.0f} % of the step, in single precision.",
        f"Compute in {dtype}, which {machine.gpu or 'this processor'} multiplies faster and which "
        "halves the memory of activations.",
        computing_gain(facts, 1.5 if facts.cuda else 1.2),
        ("precision=amp", f"precision.dtype={dtype}"),
        learns=True,
    )


def larger_batch(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that much of a step does not depend on the number of records."""
    fixed = fixed_share(facts)
    size = facts.settings.batch_size
    # The fixed cost of tiny batches slows loading as well.
    is_tiny = size < TINY and fixed > MOSTLY
    if fixed < FIXED_SHARE or not (is_tiny or _mostly_computing(facts)):
        return None
    if _python_share(facts) > fixed / 2:  # the fixed cost is Python of the user: python_rules
        return None
    larger = _larger_size(facts)
    if larger <= size:
        return None
    factor = larger / size
    return Verdict(
        "larger_batch",
        f"{100 * fixed:.0f} % of computing a step does not depend on its batch size of {size}: "
        "it is the fixed cost of a step, which a larger batch shares.",
        f"Use batches of {larger} records, and try to scale optim.lr by up to {factor:.0f}.",
        computing_gain(facts, factor / (fixed + (1 - fixed) * factor)),
        (f"batch_size={larger}",),
        learns=True,
        parts=(*PARTS, "wait", "copy") if is_tiny else (),
    )


def channels_last(facts: DiagnosisFacts) -> Verdict | None:
    """Detect convolutions that compute in channels-first layout."""
    if not facts.convolutional or not _mostly_computing(facts):
        return None
    return Verdict(
        "channels_last",
        "The model's convolutions keep each channel in a plane of its own (channels first). "
        f"Computing takes {100 * facts.computing_share:.0f} % of the step.",
        "Store the channels of a pixel together, which most kernels process faster.",
        computing_gain(facts, 1.1),
        ("channels_last=true",),
        learns=True,
    )


def compile_model(facts: DiagnosisFacts) -> Verdict | None:
    """Detect that launching many small kernels takes as long as running them."""
    fixed = fixed_share(facts)
    can_compile = facts.cuda and not facts.settings.compiled
    if not can_compile or fixed < FIXED_SHARE or not _mostly_computing(facts):
        return None
    return Verdict(
        "compile_model",
        f"{100 * fixed:.0f} % of a step's computation does not grow with the batch: the host "
        "launches many small kernels.",
        "Let torch.compile fuse the kernels; the first step of each batch size takes a minute.",
        computing_gain(facts, 1 / (1 - fixed / 2)),
        ("compile=true",),
        learns=True,
    )


def synchronizations(facts: DiagnosisFacts) -> Verdict | None:
    """Detect code of the user that makes the host wait for the GPU within a step."""
    count = sum(sync.count for sync in facts.syncs)
    share = count * SYNC_S * facts.rates.whole / facts.settings.batch_size
    if not facts.cuda or share < SYNC_SHARE:
        return None
    first = facts.syncs[0]
    place = f"{os.path.relpath(first.file)}:{first.line}"
    return Verdict(
        "synchronizations",
        f"{count} calls in a step make the host wait for {facts.machine.gpu}, which then idles "
        f"until new work arrives; most of them are {first.call} in {place}.",
        "Leave numbers on the device: return tensors, which are read only at reports, and choose "
        "with torch.where in place of an if.",
        1 / (1 - min(share, MOST_SYNC_SHARE)),
        edit=f"{place} anew: {first.text}",
    )


PARTS = ("compute", "forward", "backward", "optimizer")
RULES = (data_is_fine, amp, larger_batch, channels_last, compile_model, synchronizations)


def fixed_share(facts: DiagnosisFacts) -> float:
    """Return the share a / t of a step t = a + b * records; 0 if one size was measured."""
    rates = facts.rates
    size = facts.settings.batch_size
    if rates.other is None or rates.other_size == size:
        return 0.0
    step_s = size / rates.compute
    other_s = rates.other_size / rates.other
    fixed_s = (step_s * rates.other_size - other_s * size) / (rates.other_size - size)
    return min(1.0, max(0.0, fixed_s / step_s))


def _python_share(facts: DiagnosisFacts) -> float:
    """Return the share of a step without waiting that the user's Python takes in computing."""
    if facts.python is None:
        return 0.0
    return sum(facts.python.step.get(part, 0.0) for part in ("model", "objective"))


def _larger_size(facts: DiagnosisFacts) -> int:
    """Return the batch size, doubled until the fixed cost is a small share of a step."""
    fixed = fixed_share(facts)
    size = facts.settings.batch_size
    most = (MOST_LARGER_TINY if size < TINY else MOST_LARGER) * size
    if facts.storage is not None:
        most = min(most, facts.storage.num_records)
    factor = 2
    while 2 * factor * size <= most and fixed / (fixed + (1 - fixed) * factor) > FIXED_SHARE:
        factor *= 2
    return factor * size if factor * size <= most else size


def _mostly_computing(facts: DiagnosisFacts) -> bool:
    return facts.computing_share > MOSTLY
