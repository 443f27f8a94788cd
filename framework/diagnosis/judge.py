"""All rules, what limits a step, and which verdict names its cause."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from framework.contracts.span import shares
from framework.diagnosis import data_rules, machine_rules, script_rules, step_rules
from framework.diagnosis.facts import COMPUTING, Facts, RankFacts, ScriptFacts
from framework.diagnosis.findings import UNKNOWN, Verdict, times
from framework.measure.statistics import Pairs

# Rules, and the parts of a step that their causes slow.
RULES = (
    (data_rules.RULES, ("wait",)),
    (step_rules.COMPUTE_RULES, COMPUTING),
    (step_rules.PYTHON_RULES, ("forward",)),
    (machine_rules.RULES, ("wait", "copy", *COMPUTING)),
    (step_rules.BESIDE_RULES, step_rules.BESIDE),
)
# How a headline calls a part.
TITLES = {
    "wait": "waiting for data",
    "copy": "copying and augmenting",
    "compute": "computing",
    **{name: name for name in step_rules.BESIDE},
}
SLOWED = "computing more slowly while data is read"
WORTH_NAMING = 0.05  # a smaller share is left out of a headline
LIKELY = 1.2  # advice about computing without a certain gain names a cause if the model likes it
# What waits for them does so whatever else would help.
REASONS = {"cold_disk", "network_disk", "swap", "opencv_threads"}
# Without a few slow records, training would be so many times as fast: they are its reason.
MOSTLY = 1.5
# They make every step faster, and no step is slow because of them.
TIPS = {"data_is_fine", "amp", "channels_last"}
ROUGH = ("fewer_threads", "other_programs")  # beside these causes figures of computing are rough


@dataclass(frozen=True)
class Applied:
    """The best advice compared with the present settings. ``note`` says on which data."""

    verdict: Verdict
    comparison: Pairs
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    facts: Facts
    cause: str  # the rule that names what limits training
    limit: str  # what limits training, in words
    verdicts: tuple[Verdict, ...]  # advice worth following, the best first
    rejected: tuple[Verdict, ...]  # advice without a certain gain, or impossible here
    seconds: float  # that the diagnosis took
    applied: Applied | None = None

    @property
    def best(self) -> Verdict | None:
        """Advice against the cause, or else the first that is worth following.

        If there is none, it is rejected advice against the cause, unless it lost its trial.
        """
        first = sorted(self.verdicts, key=lambda verdict: verdict.rule != self.cause)
        likely = [v for v in self.rejected if v.rule == self.cause and not v.failed and not v.lost]
        return next((v for v in (*first, *likely) if v.is_advice), None)


def verdicts_of(facts: Facts | RankFacts) -> list[Verdict]:
    """Return the verdicts of all rules, by predicted gain."""
    if isinstance(facts, Facts):
        every = [
            replace(verdict, parts=verdict.parts or parts)
            for rules, parts in RULES
            for rule in rules
            for verdict in rule(facts)
        ]
    else:
        of_ranks = chain.from_iterable(rule(facts) for rule in machine_rules.RANK_RULES)
        every = [replace(verdict, parts=("ranks",)) for verdict in of_ranks]
    known = [replace(verdict, modeled=verdict.gain) for verdict in every]
    return sorted(known, key=lambda verdict: -verdict.gain)


def shares_of(facts: Facts, tried: Sequence[Verdict] = ()) -> dict[str, float]:
    """Return the share of a step that each part takes, the largest first.

    Data takes what a step takes longer than computing and copying alone, and at least what advice
    that was ``tried`` has gained. What a run does beside its steps is shared out over them.
    """
    gains = [verdict.gain for verdict in tried if verdict.tried and verdict.parts == ("wait",)]
    wait = 1 - 1 / max(facts.headroom, *gains, 1.0)
    copy = min(facts.copy_share, 1 - wait)
    spans_s = {name: s for name, s in facts.compute_spans_s.items() if name not in TITLES}
    if not sum(spans_s.values()):
        spans_s = {"compute": 1.0}
    scale = (1 - wait - copy) / sum(spans_s.values())
    known = {"wait": wait, "copy": copy} | {name: scale * s for name, s in spans_s.items()}
    if facts.run is not None:
        beside = facts.run.shares(facts.step_s)
        left = 1 - sum(beside.values())
        known = {name: left * share for name, share in known.items()} | beside
    return dict(sorted(known.items(), key=lambda item: -item[1]))


def limit_of(facts: Facts, cause: Verdict | None, good: Sequence[Verdict] = ()) -> str:
    """Return what limits training, in words: the largest part of a step, and its cause."""
    titles = {**TITLES, "wait": SLOWED} if facts.mostly_slowed else TITLES
    known = {name: share for name, share in shares_of(facts, good).items() if share >= WORTH_NAMING}
    first, *others = known
    limit = TITLES.get(first, "Computing").capitalize()
    if first == "wait":
        limit = "Data"
    takes = f"{titles.get(first, first)} takes {100 * known[first]:.0f} % of a step"
    text = f"{limit} limits training: {takes}"
    if others:
        rest = (f"{titles.get(name, name)} {100 * known[name]:.0f} %" for name in others)
        text += f" ({', '.join(rest)})"
    text += "."
    says = cause.says if cause else ""
    if first == "wait":
        text += f" Without it, training would be up to {times(facts.headroom)} as fast."
        says = says or data_rules.waiting(facts)
    return f"{text} {says}".strip()


def cause_of(facts: Facts, good: Sequence[Verdict], others: Sequence[Verdict]) -> Verdict | None:
    """Return the verdict that names what limits training: the best about the largest part.

    If no advice gained, it is what the model likes best. If nothing explains it, data is fine.
    """
    largest = next(iter(shares_of(facts, good)))
    about = [v for v in good if largest in v.parts and v.rule not in TIPS]
    # Packing gains most, but what is waited for is the reason.
    for verdict in about:
        if verdict.rule in REASONS or (verdict.rule == "slow_records" and verdict.gain >= MOSTLY):
            return verdict
    if about:
        return about[0]
    likely = [v for v in others if largest in v.parts and v.rule not in TIPS and not v.lost]
    fine = None
    if largest != "wait":
        likely = [verdict for verdict in likely if verdict.modeled >= LIKELY]
        fine = next(step_rules.data_is_fine(facts), None)
    return max(likely, key=lambda verdict: verdict.modeled, default=fine)


def rank_cause(facts: RankFacts, verdicts: Sequence[Verdict]) -> Verdict | None:
    """Return the verdict that names what limits training; None if no rank or exchange does.

    The ranks may all wait for data longer than for each other. Data is the limit then.
    """
    lost = 1 - 1 / verdicts[0].gain if verdicts else 0.0
    waits_s = [span.median_s for name, span in facts.spans.items() if name in ("wait", "idle")]
    if lost < max(machine_rules.LEAST_WAITING, min(waits_s, default=0.0) / facts.step_s):
        return None
    return verdicts[0]


def script_verdicts(facts: ScriptFacts) -> list[Verdict]:
    """Return advice for a script that is worth following, the most promising first.

    If computing limits, what makes its figures rough comes before all others.
    """
    if not facts.steps:
        return []
    verdicts = chain.from_iterable(rule(facts) for rule in script_rules.RULES)
    worth = [v for v in verdicts if v.gain >= script_rules.WORTH or v.gain == UNKNOWN]
    first = () if facts.data_limits else ROUGH
    return sorted(worth, key=lambda verdict: (verdict.rule not in first, -verdict.gain))


def script_limit(facts: ScriptFacts) -> str:
    """Return the largest part of a script's step, and what removing the waiting would win."""
    if not facts.steps:
        return "No training step was seen: no DataLoader, backward pass and optimizer in turn."
    largest = f"{facts.largest} takes {100 * shares(facts.spans)[facts.largest]:.0f} % of a step"
    most = f"up to {times(facts.headroom, 2)} as fast if no step waited"
    if facts.data_limits:
        return f"Data limits training: {largest} ({most})."
    if facts.waiting > 1 - 1 / script_rules.WORTH:
        waits = f"{100 * facts.waiting:.0f} % waits for data ({most})"
        return f"Computing limits training: {largest}, and {waits}."
    return f"Computing limits training: {largest}. Data is not the problem."
