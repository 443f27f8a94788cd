import pytest

from framework.measure import statistics

SLOW, FAST = [100.0, 101.0, 102.0, 103.0, 104.0], [110.0, 111.0, 112.0, 113.0, 114.0]


@pytest.mark.parametrize(
    ("values", "share"),
    [([5.0], 0.0), ([9.0, 11.0], 0.05), ([1.0, 2.0, 3.0, 4.0, 5.0], 1 / 3), ([7.0] * 8, 0.0)],
)
def test_the_spread_is_that_of_the_middle_half(values, share):
    assert statistics.spread_share(values) == pytest.approx(share)


def quiet_claim(samples, loads=None, places=None):
    """Compare choices that took turns without other programs, unless told otherwise."""
    zeros = [[0.0] * len(each) for each in samples]
    return statistics.claim(samples, loads or zeros, places or zeros)


def test_a_choice_that_is_faster_in_every_process_is_the_fastest():
    result = quiet_claim([SLOW, FAST])
    assert (result.highest, result.proved) == (1, True)
    assert result.words == "Mann-Whitney U, p <= 0.01 against every other"


@pytest.mark.parametrize(
    "samples", [[FAST, [x + 0.5 for x in FAST]], [SLOW, FAST, [x - 0.5 for x in FAST]]]
)
def test_the_fastest_must_differ_from_every_other(samples):
    result = quiet_claim(samples)
    assert not result.proved
    assert result.words.startswith("no difference found: Mann-Whitney U, p = ")


@pytest.mark.parametrize("samples", [[[1.0], [2.0]], [SLOW[:4], FAST[:4]], [SLOW, FAST, [50.0]]])
def test_few_processes_are_no_test_however_far_apart_they_lie(samples):
    result = quiet_claim(samples)
    assert (result.proved, result.words) == (False, "not tested: that takes 5 processes of each")


def test_processes_beside_other_programs_are_left_out():
    samples = [[*SLOW, 1e6], FAST]
    loads = [[0.0] * len(SLOW) + [1.5], [0.0] * len(FAST)]
    result = quiet_claim(samples, loads=loads)
    assert result.proved
    assert result.highest == 1
    assert "; 1 beside busy programs left out" in result.words


def test_repeats_that_ran_one_choice_after_the_other_prove_nothing():
    result = quiet_claim([SLOW, FAST], places=[range(5), range(5, 10)])
    assert not result.proved
    assert result.words.startswith("not tested: all repeats of one choice ran before those of")
    assert result.medians == [102.0, 112.0]
    assert quiet_claim([SLOW, FAST], places=[range(0, 10, 2), range(1, 10, 2)]).proved
    assert quiet_claim([SLOW, FAST], places=[[0.0] * 5, [0.0] * 5]).proved  # times are not known


def pairs(*ratios: float) -> statistics.Pairs:
    return statistics.Pairs((100.0,) * len(ratios), tuple(100.0 * ratio for ratio in ratios))


def test_all_of_the_least_number_of_pairs_are_enough_and_one_less_is_not():
    assert pairs(*[1.1 + number / 100 for number in range(statistics.LEAST_PAIRS)]).is_won
    few = pairs(*[1.1 + number / 100 for number in range(statistics.LEAST_PAIRS - 1)])
    assert few.chance > statistics.PAIRED_LEVEL
    assert not few.is_won


def test_a_gain_too_small_to_matter_is_not_won_however_sure():
    sure = pairs(*[1.02 + number / 1000 for number in range(8)])
    assert sure.chance <= statistics.PAIRED_LEVEL
    assert not sure.is_won


def test_the_gain_is_the_median_ratio_and_the_spread_half_the_quartiles_distance():
    measured = statistics.Pairs((100.0, 100.0, 50.0, 100.0), (200.0, 210.0, 100.0, 190.0))
    assert measured.gain == 2.0
    assert measured.spread == pytest.approx(0.05, abs=0.03)
    assert statistics.Pairs((1.0,), (3.0,)).spread == 0.0


def test_pairs_begin_with_each_setting_in_turn():
    sides = []
    measured = statistics.take_turns(lambda side: sides.append(side) or 10.0 * (side + 1), 3)
    assert sides == [0, 1, 1, 0, 0, 1]
    assert measured == statistics.Pairs((10.0,) * 3, (20.0,) * 3)
