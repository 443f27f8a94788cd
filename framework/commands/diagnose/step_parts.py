"""The parts of a training step, and which of them is the largest."""

from collections.abc import Sequence

from framework.commands.diagnose.facts import DiagnosisFacts
from framework.commands.diagnose.verdict import Verdict

# How a headline calls a part. A subject with facts of its own may add parts to `shares_of`.
TITLES = {
    "wait": "waiting for data",
    "copy": "copying and augmenting",
    "compute": "computing",
    "validating": "validating",
    "saving": "saving",
    "reporting": "reporting",
}
LIMITS = {
    "wait": "Data limits training",
    "copy": "Copying and augmenting limits training",
    "validating": "Validating limits training",
    "saving": "Saving limits training",
    "reporting": "Reporting limits training",
}
COMPUTING = "Computing limits training"
SLOWED = "computing more slowly while data is read"
WORTH_NAMING = 0.05  # a smaller share is left out of a headline


def shares_of(facts: DiagnosisFacts, tried: Sequence[Verdict] = ()) -> dict[str, float]:
    """Return the share of a step that each part takes, the largest first.

    Data takes what a step takes longer than computing and copying alone: workers take the cores
    from computing, which no wait shows. Advice about data that was ``tried`` with a gain proves a
    share. Validating, saving and reporting are shared out over the steps of a run.
    """
    gains = [verdict.gain for verdict in tried if verdict.tried and verdict.parts == ("wait",)]
    wait = 1 - 1 / max(facts.headroom, *gains, 1.0)
    copy = min(facts.copy_share, 1 - wait)
    spans_s = _computing_spans(facts)
    scale = (1 - wait - copy) / sum(spans_s.values())
    shares = {"wait": wait, "copy": copy} | {name: scale * s for name, s in spans_s.items()}
    if facts.on_run is not None:
        beside = facts.on_run.shares(facts.step_ms(facts.rates.whole) / 1e3)
        left = 1 - sum(beside.values())
        shares = {name: left * share for name, share in shares.items()} | beside
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _computing_spans(facts: DiagnosisFacts) -> dict[str, float]:
    """Return the seconds of each span of computing, or a single part if none was measured."""
    spans_s = {name: s for name, s in facts.rates.compute_spans_s.items() if name not in TITLES}
    if not sum(spans_s.values()):
        return {"compute": 1.0}
    return spans_s


def headline(shares: dict[str, float], slowed: bool = False) -> str:
    """Return a sentence about the largest part of a step and the parts after it.

    With ``slowed``, reading costs a step more by slowing it than by making it wait.
    """
    titles = {**TITLES, "wait": SLOWED} if slowed else TITLES
    first, *others = (name for name, share in shares.items() if share >= WORTH_NAMING)
    title = titles.get(first, first)
    text = f"{LIMITS.get(first, COMPUTING)}: {title} takes {_percent(shares[first])}"
    if not others:
        return f"{text} of a step."
    rest = ", ".join(f"{titles.get(name, name)} {_percent(shares[name])}" for name in others)
    return f"{text} of a step ({rest})."


def times(factor: float) -> str:
    """Return a factor in words: ``2.4 times``, or ``31 times``."""
    digits = 1 if factor < 10 else 0
    return f"{factor:.{digits}f} times"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
