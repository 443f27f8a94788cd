"""The search for a cause, with rates that are computed."""

import sys

import numpy as np
import pytest

from framework.commands.bisect import search_cause
from framework.commands.bisect.meter import Refused
from framework.commands.bisect.search_cause import (
    ALIKE,
    FOUND,
    UNPROVED,
    BisectJob,
    CauseSearch,
    differences,
)
from framework.commands.bisect.sides import Side
from framework.errors import ConfigError, ResourceError

KEYS = [f"key{number}" for number in range(8)]


class ComputedRates:
    """A Meter whose rates follow from the settings."""

    def __init__(self, rate, spread=0.01):
        self._rate = rate
        self._spread = spread
        self._rng = np.random.default_rng(0)

    def rate(self, setting):
        return self._rate(setting) * float(np.exp(self._rng.normal(0, self._spread)))

    def versions(self, environment):
        return {"torch": "2.0" if environment.python == sys.executable else "2.1", "numpy": "2"}


def side(value, commit=None):
    return Side("run", dict.fromkeys(KEYS, value), {"git": commit}, 100.0)


def job(before=None, after=None, **changes):
    values = {"allowed": (), "pairs": 12, "seconds": 0.1, "python": None, "repo": None, **changes}
    return BisectJob(before or side(0), after or side(1), **values)


def searched(asked, rate, spread=0.01):
    return CauseSearch(
        asked, differences(asked), ComputedRates(rate, spread), None, lambda _: None
    ).run()


@pytest.mark.parametrize("slower", ["first", "second"])
@pytest.mark.parametrize("key", KEYS)
def test_one_slow_change_among_eight_is_found(key, slower):
    slow = slower == "second"
    result = searched(job(), lambda setting: 90 if setting.config[key] == slow else 100)
    assert result.outcome == FOUND
    assert result.slower == slower
    assert [change.name for change in result.cause] == [key]


def test_two_changes_that_are_slow_only_together_are_found():
    result = searched(
        job(), lambda setting: 80 if setting.config["key1"] + setting.config["key6"] == 2 else 100
    )
    assert result.outcome == FOUND
    assert {change.name for change in result.cause} == {"key1", "key6"}


def test_a_part_that_does_not_run_is_no_cause():
    def rate(setting):
        values = setting.config
        if values["key2"] != values["key3"]:
            raise Refused("they belong together")
        return 80 if values["key3"] else 100

    result = searched(job(), rate)
    assert {change.name for change in result.cause} == {"key2", "key3"}


def test_sides_that_do_not_differ_here_have_no_cause():
    result = searched(job(), lambda _: 100, spread=0.003)
    assert (result.outcome, result.slower, result.cause) == (ALIKE, "", [])


def test_noise_that_hides_the_difference_is_said():
    result = searched(job(), lambda setting: 100 - 2 * setting.config["key1"], spread=0.5)
    assert result.outcome == UNPROVED


def test_another_environment_is_one_change():
    asked = job(side(0), side(0), python="/other/python")
    result = searched(asked, lambda own: 90 if own.environment.python == "/other/python" else 100)
    assert [change.name for change in result.cause] == ["python"]
    assert result.versions == ["torch 2.0 -> 2.1"]


class NamedTrees:
    def tree(self, commit):
        return commit


def test_the_first_slow_commit_is_measured_against_the_last_fast_one(monkeypatch):
    monkeypatch.setattr(search_cause, "commits_between", lambda *_: list("abcdef"))
    monkeypatch.setattr(search_cause, "title_of", lambda _, commit: commit)
    measured = []

    def rate(setting):
        tree = setting.environment.tree
        measured.append(tree)
        if tree == "d":
            raise Refused("it is broken")
        return 80 if tree in "ef" else 100

    asked = job(side(0, "a"), side(0, "f"), repo=".")
    meter = ComputedRates(rate)
    search = CauseSearch(asked, differences(asked), meter, NamedTrees(), lambda _: None)
    result = search.run()
    assert (result.outcome, result.commits) == (FOUND, ["d", "e"])
    assert set(measured[-12:]) == {"c", "e"}


def test_a_side_that_does_not_run_is_an_error():
    def rate(setting):
        if setting.config["key0"]:
            raise Refused("no such store")
        return 100

    with pytest.raises(ResourceError, match=r"R341.*no such store"):
        searched(job(), rate)


def test_a_side_that_runs_only_at_first_is_an_error():
    rates = iter([100.0, 90.0])

    def rate(_):
        rest = next(rates, None)
        if rest is None:
            raise Refused("no memory is left")
        return rest

    with pytest.raises(ResourceError, match=r"R341.*not each time.*no memory is left"):
        searched(job(), rate)


def test_sides_without_a_difference_to_measure_are_refused():
    with pytest.raises(ConfigError, match="C346"):
        differences(job(side(0), side(0)))
    with pytest.raises(ConfigError, match="C349"):
        differences(job(repo="."))
    same = side(0, "abc"), side(0, "abc+")
    with pytest.raises(ConfigError, match="C346"):
        differences(job(*same, repo="."))
