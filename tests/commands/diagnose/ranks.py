"""Facts of ranks, of which a case changes some."""

from framework.commands.diagnose.rank_facts import RankFacts
from framework.contracts.rank_spans import LateRank, RankSpan

SPANS = {
    "wait": RankSpan(0.001, 0.002, 0.003, 0),
    "forward": RankSpan(0.01, 0.02, 0.03, 1),
    "exchange": RankSpan(0.04, 0.05, 0.06, 0),
}
LATE = LateRank(1, "forward", 0.98, 0.02, 0.4, 0.0)


def rank_facts(**changes):
    return RankFacts(**{"num_ranks": 2, "num_steps": 40, "step_s": 0.1, "spans": SPANS, **changes})
