"""Which rule speaks when, and which verdict is the cause."""

import pytest

from framework.commands.diagnose.rank_rules import rank_cause, rank_verdicts
from framework.contracts.rank_spans import RankSpan
from tests.commands.diagnose.ranks import LATE, SPANS, rank_facts


def rules(**changes):
    return [verdict.rule for verdict in rank_verdicts(rank_facts(**changes))]


def cause(**changes):
    facts = rank_facts(**changes)
    verdict = rank_cause(facts, rank_verdicts(facts))
    return verdict and verdict.rule


def test_a_late_rank_is_the_cause_and_the_gain_is_what_the_others_lost():
    (verdict,) = rank_verdicts(rank_facts(late=LATE))
    assert cause(late=LATE) == "slow_rank"
    assert verdict.gain == pytest.approx(1 / 0.6)
    assert verdict.says.startswith("Rank 1 is late in 98 % of the steps, in `forward`, by 20 ms")
    assert verdict.is_advice
    assert not verdict.can_try


@pytest.mark.parametrize(
    ("span", "word"), [("wait", "disk"), ("copy", "link"), ("report", "sinks"), ("forward", "rank")]
)
def test_the_advice_looks_where_the_rank_is_slow(span, word):
    (verdict,) = rank_verdicts(rank_facts(late=LATE._replace(span=span)))
    assert word in verdict.action


def test_a_rank_with_more_work_is_not_slow_but_uneven():
    changes = {"late": LATE, "rank_work": 1.5, "step_work": 1.5, "waiting_share": 0.2}
    assert rules(**changes) == ["uneven_ranks"]
    assert cause(**changes) == "uneven_ranks"


def test_what_the_exchange_of_gradients_costs_is_measured():
    (verdict,) = rank_verdicts(rank_facts(exchange_share=0.3, unsynced_s=0.05))
    assert verdict.rule == "slow_collectives"
    assert verdict.gain == pytest.approx(2.0)
    assert "50.0 ms instead of 100.0 ms" in verdict.says
    assert not verdict.overrides


def test_exchanges_that_are_not_of_gradients_are_those_of_batch_norm():
    changes = {"exchange_share": 0.3, "unsynced_s": 0.099}
    (verdict,) = rank_verdicts(rank_facts(**changes, sync_batch_norm=True))
    assert verdict.overrides == ("parallel.sync_batch_norm=false",)
    (verdict,) = rank_verdicts(rank_facts(**changes))
    assert not verdict.overrides


def test_a_small_loss_is_advice_but_no_cause():
    assert rules(exchange_share=0.05) == ["slow_collectives"]
    assert cause(exchange_share=0.05) is None


def test_waiting_for_data_on_all_ranks_comes_first():
    spans = {**SPANS, "wait": RankSpan(0.04, 0.045, 0.05, 0)}
    assert cause(late=LATE, spans=spans) is None
    assert rules(late=LATE, spans=spans) == ["slow_rank"]
