import pytest

from framework.commands.diagnose.step_parts import headline, shares_of
from framework.commands.diagnose.verdict import Verdict
from tests.commands.diagnose.cases import FINE, facts

SPANS_S = {"wait": 1e-5, "copy": 1e-5, "forward": 0.04, "backward": 0.02, "optimizer": 0.004}


def test_data_takes_what_a_step_takes_longer_than_computing():
    shares = shares_of(facts(rates={"compute_spans_s": SPANS_S}))
    assert list(shares) == ["wait", "forward", "backward", "optimizer", "copy"]
    assert shares["wait"] == pytest.approx(0.75)
    assert shares["forward"] == pytest.approx(0.25 * 40 / 64)
    assert sum(shares.values()) == pytest.approx(1)


def test_a_trial_that_gains_proves_a_share():
    tried = [Verdict("lower_workers", "s", "w", 5.0, tried=True, parts=("wait",))]
    assert shares_of(facts(rates=FINE), tried)["wait"] == pytest.approx(0.8)
    unproved = [Verdict("lower_workers", "s", "w", 5.0, parts=("wait",))]
    assert shares_of(facts(rates=FINE), unproved)["wait"] < 0.02


def test_the_headline_names_the_largest_part_first():
    assert headline({"forward": 0.6, "wait": 0.37, "copy": 0.03}) == (
        "Computing limits training: forward takes 60 % of a step (waiting for data 37 %)."
    )
    assert headline({"wait": 0.98, "forward": 0.02}) == (
        "Data limits training: waiting for data takes 98 % of a step."
    )


def test_the_headline_says_if_reading_slows_the_step():
    assert headline({"wait": 0.6, "forward": 0.4}, slowed=True) == (
        "Data limits training: computing more slowly while data is read takes 60 % of a step "
        "(forward 40 %)."
    )
