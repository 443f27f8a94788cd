import pytest

from framework.contracts.rank_spans import LateRank

LATE = LateRank(3, "backward", 0.71, 0.012, 0.09, 0.0)


def test_a_late_rank_is_named_in_a_sentence():
    assert LATE.words == (
        "rank 3 is late in 71 % of the steps, in `backward`, by 12 ms; "
        "the others lost 9 % of the run"
    )


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.00123, "1.23 ms"), (0.012345, "12.3 ms"), (1.5, "1500 ms")]
)
def test_times_have_as_many_digits_as_they_deserve(seconds, words):
    assert f"by {words};" in LATE._replace(late_s=seconds).words


def test_clocks_that_may_be_wrong_are_mentioned():
    assert "by 12 ms (clocks agree within 0.25 ms);" in LATE._replace(uncertainty_s=2.5e-4).words
