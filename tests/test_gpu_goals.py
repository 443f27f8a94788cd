"""Figures of a GPU stand beside their goals."""

from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def goals(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import gpu_goals

    return gpu_goals


def test_a_figure_meets_its_goal_or_misses_it_or_was_not_measured(goals):
    rows = goals.judged("overhead", {"kernel by kernel": {"us": 15.0}})
    assert [row[1:] for row in rows] == [("<= 15", "15", "yes"), ("<= 3", "not measured", "open")]
    rows = goals.judged("overhead", {"kernel by kernel": {"us": 15.1}, "one graph": {"us": 2}})
    assert [row[3] for row in rows] == ["no", "yes"]


def test_goals_are_of_parts_that_exist(goals):
    import gpu

    assert {goal.part for goal in goals.GOALS} <= set(gpu.PARTS)


def test_the_page_of_goals_has_every_target(goals):
    page = (BENCHMARKS.parent / "docs" / "measured.md").read_text()
    table = page.partition("| goal | target | measured |")[2].strip().partition("\n\n")[0]
    rows = table.splitlines()[1:]
    targets = [str(goal.limit).removesuffix(".0") for goal in goals.GOALS]
    assert len(rows) == len(targets) - 1  # the two kinds of step share a row
    assert all(any(target in row for row in rows) for target in targets)
