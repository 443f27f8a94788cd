"""The terminal's words about a bisection."""

from dataclasses import replace

from framework.commands.bisect.compared_rates import ALIKE, SLOWER, UNSURE, RateComparison
from framework.commands.bisect.config_changes import KeyChange
from framework.commands.bisect.print_cause import print_result, print_sides
from framework.commands.bisect.search_cause import FOUND, BisectResult
from framework.commands.bisect.search_cause import UNPROVED as NO_PROOF
from framework.commands.paired_test import Pairs
from tests.commands.bisect.test_search_cause import job, side

PAIRS = Pairs((100.0,) * 6, (110.0, 111.0, 112.0, 110.5, 111.5, 112.5))
KEY = KeyChange(("model", "width"), 16, 24)


def test_what_differs_and_what_is_left_out_is_said(capsys):
    first = replace(side(0, "abc+"), facts={"git": "abc+", "versions": {"torch": "2.0"}})
    second = replace(side(1), facts={"git": "def", "versions": {"torch": "2.1"}})
    print_sides(job(first, second), [KEY, KeyChange(("epochs",), 1, 2)])
    text = capsys.readouterr().out
    assert "first: run, 100 records/s recorded" in text
    assert "1 difference to measure" in text
    assert "not measured, since training steps do not use it: epochs" in text
    assert "versions differ: torch 2.0 and 2.1; python= measures" in text
    assert "commits differ: abc+ and def; repo= measures them" in text
    assert "had changes that no commit holds" in text
    assert "Wilcoxon's signed-rank test" in text


def test_the_cause_is_named_with_its_effect(capsys):
    test = RateComparison(PAIRS, SLOWER)
    commits = ["abc (broken)", "def (slow)"]
    print_result(BisectResult(FOUND, "second", test, [KEY], test, commits=commits))
    text = capsys.readouterr().out
    assert "first slow commit: def (slow)" in text
    assert "or this one, which does not run: abc (broken)" in text
    assert "the second is slower: 1.113 times" in text
    assert "cause: model.width: 16 -> 24" in text
    assert "alone, it is slower: 1.113 times" in text


def test_what_is_not_proved_is_said(capsys):
    for verdict, words in ((ALIKE, "no difference here and now"), (UNSURE, "its spread hides")):
        print_result(BisectResult(NO_PROOF, both=RateComparison(PAIRS, verdict)))
        assert words in capsys.readouterr().out
    print_result(BisectResult(NO_PROOF, "first", RateComparison(PAIRS, SLOWER), [KEY]))
    assert "no cause is proved; the nearest: model.width" in capsys.readouterr().out
