import pytest

from framework.measure.spread import spread_share


@pytest.mark.parametrize(
    ("values", "share"),
    [([5.0], 0.0), ([9.0, 11.0], 0.05), ([1.0, 2.0, 3.0, 4.0, 5.0], 1 / 3), ([7.0] * 8, 0.0)],
)
def test_the_middle_half_counts(values, share):
    assert spread_share(values) == pytest.approx(share)


def test_one_value_far_off_does_not_count():
    assert spread_share([100.0, 101.0, 102.0, 103.0, 1e6]) < 0.02
