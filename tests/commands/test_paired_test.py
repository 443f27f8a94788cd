import pytest

from framework.commands.paired_test import LEAST_PAIRS, LEVEL, Pairs


def pairs(*ratios: float) -> Pairs:
    return Pairs((100.0,) * len(ratios), tuple(100.0 * ratio for ratio in ratios))


def test_equals_prove_nothing():
    assert not pairs(*[1.0] * 10).is_won


def test_all_of_the_least_number_of_pairs_are_enough_and_one_less_is_not():
    assert pairs(*[1.1 + number / 100 for number in range(LEAST_PAIRS)]).is_won
    few = pairs(*[1.1 + number / 100 for number in range(LEAST_PAIRS - 1)])
    assert few.chance > LEVEL
    assert not few.is_won


def test_a_gain_too_small_to_matter_is_not_won_however_sure():
    sure = pairs(*[1.02 + number / 1000 for number in range(8)])
    assert sure.chance <= LEVEL
    assert not sure.is_won


def test_a_gain_that_chance_explains_is_not_won():
    assert not pairs(1.5, 0.8, 1.4, 0.7, 1.3, 0.9, 1.2, 1.1).is_won


def test_the_gain_is_the_median_and_the_quartiles_enclose_it():
    result = pairs(1.0, 1.1, 1.2, 1.3, 1.4)
    assert result.gain == pytest.approx(1.2)
    assert result.quartiles == pytest.approx((1.1, 1.3))
    assert pairs(1.5).quartiles == (1.5, 1.5)


def test_the_gain_is_the_median_ratio_and_the_spread_half_the_quartiles_distance():
    measured = Pairs((100.0, 100.0, 50.0, 100.0), (200.0, 210.0, 100.0, 190.0))
    assert measured.gain == 2.0
    assert measured.spread == pytest.approx(0.05, abs=0.03)
    assert Pairs((1.0,), (3.0,)).spread == 0.0
