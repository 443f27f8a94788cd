"""Rules about single records."""

from framework.cli.arguments import quoted
from framework.commands.diagnose.facts import DiagnosisFacts, gain
from framework.commands.diagnose.verdict import Verdict
from framework.contracts.slow_records import FEW, MOST_NAMED, named

# If slow records take a smaller share of a step, they are no cause.
LEAST_SHARE = 0.03
MOST_SHARE = 0.99
# Slow records that were read less often are not all known.
LEAST_READS = 3


def slow_records(facts: DiagnosisFacts) -> Verdict | None:
    """Detect a few records that take many times as long as the others and delay their batches."""
    block = facts.slow_records
    if not block or not facts.data_limits or block["num_slow"] > FEW * block["num_records"]:
        return None
    # The waiting was measured without steps, too. Their share of what data costs is taken to be
    # the same.
    share = (1 - 1 / facts.headroom) * block["saved_s"] / (block["wait_s"] or 1.0)
    if share < LEAST_SHARE:
        return None
    rest = max(1 - block["slow_s"] / block["read_s"], 1 - MOST_SHARE)
    names = ", ".join(map(named, block["records"][:MOST_NAMED]))
    of_waiting = 100 * block["slow_wait_s"] / block["wait_s"]
    return Verdict(
        "slow_records",
        f"{block['num_slow']:,} of {block['num_records']:,} reads took at least 8 times as long as "
        f"the usual {1e3 * block['usual_s']:.1f} ms, and {of_waiting:.0f} % of the waiting was for "
        f"their batches: {names}.",
        "Make these records as small as the others, or move them to a disk that is as fast.",
        min(gain(facts, load_s=rest * facts.load_s), 1 / (1 - min(share, MOST_SHARE))),
        action="shrink these files, or pack all with pack.max_side=512, say",
        trial=_trial(facts),
    )


def _trial(facts: DiagnosisFacts) -> tuple[str, ...]:
    """Return overrides that leave the slow records out, or nothing if this shows no gain."""
    numbers = facts.slow_records["numbers"]
    num_slow = facts.slow_records["num_slow"]
    if facts.storage is None or facts.storage.form == "dataset":
        return ()
    if num_slow < LEAST_READS * len(numbers):
        return ()
    others = f"record not in {list(numbers)}"
    if facts.settings.select is not None:
        others = f"({facts.settings.select}) and {others}"
    return (f"select={quoted(others)}",)


PARTS = ("wait",)
RULES = (slow_records,)
