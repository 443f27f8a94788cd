import pytest

from framework.measure.statistics import claim, repeats_needed

SLOW, FAST = [100.0, 101.0, 102.0, 103.0, 104.0], [110.0, 111.0, 112.0, 113.0, 114.0]


def test_what_is_faster_in_every_process_is_the_fastest():
    found = claim([SLOW, FAST])
    assert (found.highest, found.proved) == (1, True)
    assert found.words == "Mann-Whitney U, p <= 0.01 against every other"


@pytest.mark.parametrize(
    "samples", [[FAST, [x + 0.5 for x in FAST]], [SLOW, FAST, [x - 0.5 for x in FAST]]]
)
def test_it_must_differ_from_every_other(samples):
    found = claim(samples)
    assert not found.proved
    assert found.words.startswith("no difference found: Mann-Whitney U, p = ")


@pytest.mark.parametrize("samples", [[[1.0], [2.0]], [SLOW[:4], FAST[:4]], [SLOW, FAST, [50.0]]])
def test_few_processes_are_no_test_however_far_apart_they_lie(samples):
    found = claim(samples)
    assert (found.proved, found.words) == (False, "not tested: that takes 5 processes of each")


def test_one_percent_takes_five_processes():
    assert repeats_needed(0.01) == 5
