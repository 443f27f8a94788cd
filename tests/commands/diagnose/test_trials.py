import pytest

from framework.commands.diagnose.trials import Comparison, alternate, beside
from tests.commands.diagnose.setting import setting


def test_a_comparison_is_told_by_the_median_of_pairs():
    found = Comparison((100.0, 100.0, 50.0, 100.0), (200.0, 210.0, 100.0, 190.0))
    assert found.gain == 2.0
    assert found.spread == pytest.approx(0.05, abs=0.03)
    assert Comparison((1.0,), (3.0,)).spread == 0.0


def test_two_settings_are_run_in_turn():
    one = setting("data=synthetic", "batch_size=8")
    found = alternate(one, one, 2, 0.1, 0.02)
    assert len(found.before) == len(found.after) == 2
    assert all(rate > 0 for rate in (*found.before, *found.after))


def test_each_of_several_is_beside_the_present_one():
    one, other = (
        setting("data=synthetic", "batch_size=8"),
        setting("data=synthetic", "batch_size=16"),
    )
    found = beside(one, [other, one], 0.1, 0.02)
    assert [len(comparison.ratios) for comparison in found] == [2, 2]
