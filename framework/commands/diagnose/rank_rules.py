"""Rules about ranks that wait for each other."""

from collections.abc import Callable
from dataclasses import replace

from framework.commands.diagnose.rank_facts import RankFacts
from framework.commands.diagnose.verdict import Verdict

PARTS = ("ranks",)
# A smaller share of a step is not worth advice.
LEAST = 0.03
# Ranks may take turns in being last by chance. Only a larger share needs an explanation.
LEAST_WAITING = 0.1
# If a rank has so many times the work of the mean one, its work explains why it is late.
UNEVEN = 1.1
# The share that removing an exchange leaves of a step, at least.
LEAST_LEFT = 0.05
WHERE = {
    "wait": "Look at what its data comes from: its disk, its network, its host's free cores.",
    "copy": "Look at the link between its host and its device, and at what augments there.",
    "report": "Look at what only this rank does at reports: sinks, watchers, pictures.",
}
COMPUTES = (
    "Look at what only this rank does there: code that asks for its rank, other programs on its "
    "cores, a device that is slower or hotter than the others."
)


def slow_rank(facts: RankFacts) -> Verdict | None:
    """Detect a rank that makes all others wait although it has no more work than they have."""
    late = facts.late
    if late is None or late.lost_share < LEAST or facts.rank_work >= UNEVEN:
        return None
    return Verdict(
        "slow_rank",
        f"R{late.words[1:]}.",
        f"All ranks are as slow as rank {late.rank}.",
        _without(late.lost_share),
        action=WHERE.get(late.span, COMPUTES),
    )


def uneven_ranks(facts: RankFacts) -> Verdict | None:
    """Detect different amounts of work, due to which most ranks wait for one in every step."""
    if facts.step_work < UNEVEN or facts.waiting_share < LEAST_WAITING:
        return None
    return Verdict(
        "uneven_ranks",
        f"Ranks wait for each other in {100 * facts.waiting_share:.0f} % of the time: in a step, "
        f"the largest share of a batch is {facts.step_work:.1f} times as large as the mean.",
        "Give all ranks records of about the same size.",
        _without(facts.waiting_share),
        action="Use order=buckets for records of several lengths, or crop or scale them to one "
        "size. Larger batches differ less in their sums.",
    )


def slow_collectives(facts: RankFacts) -> Verdict | None:
    """Detect exchanges that take a large share of a step, even without waiting for a rank."""
    of_gradients = 1 - 1 / facts.unsynced_gain
    share = max(facts.exchange_share, of_gradients)
    if share < LEAST:
        return None
    says = f"Exchanges among {facts.num_ranks} ranks take {100 * share:.0f} % of a step"
    if facts.unsynced_s is not None:
        says += (
            f"; without that of gradients it would take {1e3 * facts.unsynced_s:.1f} ms "
            f"instead of {1e3 * facts.step_s:.1f} ms"
        )
    overrides: tuple[str, ...] = ()
    why = "Exchange less often: a larger batch, or fewer ranks, computes more between exchanges."
    action = "Give each rank more records, as with rank_batch_size=; use a faster network."
    if facts.sync_batch_norm and of_gradients < facts.exchange_share / 2:
        why = "Batch norm exchanges its statistics in every layer. Let each rank use its own."
        overrides = ("parallel.sync_batch_norm=false",)
        action = ""
    return Verdict(
        "slow_collectives",
        f"{says}.",
        why,
        _without(share),
        overrides,
        action=action,
        learns=True,
    )


Rule = Callable[[RankFacts], Verdict | None]
RULES: tuple[Rule, ...] = (slow_rank, uneven_ranks, slow_collectives)


def rank_verdicts(facts: RankFacts) -> list[Verdict]:
    """Return the verdicts of all rules, by predicted gain."""
    verdicts: list[Verdict] = []
    for rule in RULES:
        verdict = rule(facts)
        if verdict is not None:
            verdicts.append(replace(verdict, parts=PARTS, modeled=verdict.gain))
    return sorted(verdicts, key=lambda verdict: -verdict.gain)


def rank_cause(facts: RankFacts, verdicts: list[Verdict]) -> Verdict | None:
    """Return the verdict that names what limits training; None if no rank or exchange does.

    The ranks may all wait for data longer than for each other. Data is the limit then.
    """
    if not verdicts:
        return None
    lost = 1 - 1 / verdicts[0].gain
    if lost < LEAST_WAITING or lost < facts.data_share:
        return None
    return verdicts[0]


def _without(share: float) -> float:
    """Return the factor on the training rate if a share of a step were gone."""
    return 1 / max(LEAST_LEFT, 1 - share)
