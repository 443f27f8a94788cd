"""Rules about the computation: what is left when no step waits for data. Each: Facts -> Verdict, or None."""

from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.verdict import Verdict

MOSTLY = 0.6  # of a step is computing: then computing faster shows
FIXED_SHARE = 0.15  # of a step that does not grow with the batch
WELL_USED = 0.05


def _computing(facts: DiagnosisFacts) -> bool:
    return facts.rates.whole / facts.rates.compute > MOSTLY


def _faster(facts: DiagnosisFacts, factor: float) -> float:
    """The factor on whole steps when computing is ``factor`` times as fast, and what waits for data stays."""
    share = min(1.0, facts.rates.whole / facts.rates.compute)
    return 1 / (share / factor + 1 - share)


def fixed_share(facts: DiagnosisFacts) -> float | None:
    """The share of a step's computation that does not grow with the batch, from the step and one of half the records: t = a + b * n."""
    if facts.rates.half is None:
        return None
    whole_s, half_s = 1 / facts.rates.compute, 0.5 / facts.rates.half
    return min(1.0, max(0.0, (2 * half_s - whole_s) / whole_s))


def data_is_fine(facts: DiagnosisFacts) -> Verdict | None:
    """Nothing about data can make this run much faster."""
    if facts.data_limits:
        return None
    most = 100 * (facts.headroom - 1)
    bound = f"at most {max(1, round(most))} % to win"
    return Verdict(
        "data_is_fine",
        f"data is not your problem: {bound}. One batch for ever does {facts.rates.compute:,.0f} records/s, training {facts.rates.whole:,.0f}",
        "no loader, format or worker count can do more than that; the model, its precision or its batch size can",
        facts.headroom,
    )


def amp(facts: DiagnosisFacts) -> Verdict | None:
    """Single precision where the hardware multiplies half of it faster."""
    if (
        facts.settings.precision != "fp32"
        or not _computing(facts)
        or not (facts.cuda or facts.machine.bf16)
    ):
        return None
    dtype = "bf16" if facts.machine.bf16 else "fp16"
    where = facts.machine.gpu or "this processor"
    return Verdict(
        "amp",
        f"computing is {100 * min(1.0, facts.rates.whole / facts.rates.compute):.0f} % of the step, in single precision",
        f"{where} multiplies {dtype} faster, and activations take half the memory",
        _faster(facts, 1.5 if facts.cuda else 1.2),
        ("precision=amp", f"precision.dtype={dtype}"),
        learns=True,
    )


def larger_batch(facts: DiagnosisFacts) -> Verdict | None:
    """Much of a step's time does not depend on how many records it has."""
    fixed = fixed_share(facts)
    if fixed is None or fixed < FIXED_SHARE or not _computing(facts):
        return None
    batch_size = facts.settings.batch_size
    return Verdict(
        "larger_batch",
        f"{100 * fixed:.0f} % of a step's computation does not grow with the batch (half the records: {facts.rates.half or 0:,.0f} records/s, "
        f"all: {facts.rates.compute:,.0f})",
        "twice the records share it; it changes what is learned: try optim.lr twice as high too",
        _faster(facts, 2 / (2 - fixed)),
        (f"batch_size={2 * batch_size}",),
        learns=True,
    )


def channels_last(facts: DiagnosisFacts) -> Verdict | None:
    """Convolutions on planes, where the hardware wants pixels."""
    if not facts.convolutional or not _computing(facts):
        return None
    return Verdict(
        "channels_last",
        f"the model convolves [B, C, H, W] in planes; computing is {100 * min(1.0, facts.rates.whole / facts.rates.compute):.0f} % of the step",
        "most kernels are faster when a pixel's channels lie together; weights laid out so carry it through the model",
        _faster(facts, 1.1),
        ("channels_last=true",),
        learns=True,
    )


def compile_model(facts: DiagnosisFacts) -> Verdict | None:
    """Many small kernels: launching them takes as long as running them."""
    fixed = fixed_share(facts)
    if (
        not facts.cuda
        or facts.settings.compiled
        or fixed is None
        or fixed < FIXED_SHARE
        or not _computing(facts)
    ):
        return None
    return Verdict(
        "compile_model",
        f"{100 * fixed:.0f} % of a step's computation does not grow with the batch: the host launches kernels one by one",
        "torch.compile fuses them; the first step takes a minute, and so does the first of another batch size",
        _faster(facts, 1 / (1 - fixed / 2)),
        ("compile=true",),
        learns=True,
    )


RULES = (data_is_fine, amp, larger_batch, channels_last, compile_model)
