import pytest

from framework.commands.diagnose.trials import Comparison, alternate, compare_each
from tests.commands.diagnose.setting import setting


def test_the_gain_is_the_median_ratio_of_the_pairs():
    comparison = Comparison((100.0, 100.0, 50.0, 100.0), (200.0, 210.0, 100.0, 190.0))
    assert comparison.gain == 2.0
    assert comparison.spread == pytest.approx(0.05, abs=0.03)
    assert Comparison((1.0,), (3.0,)).spread == 0.0


def test_two_settings_are_run_in_turn():
    same = setting("data=synthetic", "batch_size=8")
    comparison = alternate(same, same, 2, 0.1, 0.02)
    assert len(comparison.before) == len(comparison.after) == 2
    assert all(rate > 0 for rate in (*comparison.before, *comparison.after))


def test_each_of_several_runs_between_two_runs_of_the_present_settings():
    present = setting("data=synthetic", "batch_size=8")
    other = setting("data=synthetic", "batch_size=16")
    comparisons = compare_each(present, [other, present], 0.1, 0.02)
    assert [len(comparison.ratios) for comparison in comparisons] == [2, 2]
