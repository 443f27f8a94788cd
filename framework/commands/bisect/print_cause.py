"""Print what differs between two sides, and which of it makes one slower."""

import sys
from collections.abc import Sequence

from framework.commands.bisect.compared_rates import UNSURE, RateComparison
from framework.commands.bisect.config_changes import KeyChange
from framework.commands.bisect.search_cause import (
    COMMIT,
    FOUND,
    PYTHON,
    BisectJob,
    BisectResult,
    shown,
)
from framework.commands.bisect.sides import Side, differing_packages
from framework.commands.paired_test import LEAST_GAIN, LEAST_PAIRS, LEVEL
from framework.commands.print_table import print_table
from framework.commands.report.units import plural, rate
from framework.errors import printable


def print_sides(job: BisectJob, changes: Sequence[KeyChange]) -> None:
    """Print the recorded rates, and every difference."""
    for order, side in (("first", job.before), ("second", job.after)):
        print(printable(f"{order}: {side.name}, {_recorded(side)}"))
    rows = [
        [printable(part) for part in (change.name, shown(change.before), shown(change.after))]
        for change in changes
        if change.is_measured
    ]
    print(f"{plural(len(rows), 'difference')} to measure")
    print_table("", ["key", "first", "second"], [], rows)
    others = [change.name for change in changes if not change.is_measured]
    if others:
        print(printable(f"not measured, since training steps do not use it: {', '.join(others)}"))
    for note in _unmeasured(job):
        print(printable(f"note: {note}"))
    print(rule_in_words(job), flush=True)


def _recorded(side: Side) -> str:
    if side.rate is None:
        return "no rate recorded"
    words = f"{rate(side.rate)} records/s recorded"
    if side.spread is not None:
        words += f" ± {side.spread:.1%}"
    return words


def _unmeasured(job: BisectJob) -> list[str]:
    """Return which recorded differences the search leaves out."""
    notes: list[str] = []
    before, after = job.before.versions, job.after.versions
    names = differing_packages(before, after)
    versions = ", ".join(f"{name} {before.get(name)} and {after.get(name)}" for name in names)
    if versions and job.python is None:
        notes.append(f"versions differ: {versions}; python= measures another environment")
    commits = job.before.commit, job.after.commit
    if commits[0] != commits[1] and job.repo is None:
        notes.append(f"commits differ: {commits[0]} and {commits[1]}; repo= measures them")
    if any(commit is not None and commit.endswith("+") for commit in commits):
        notes.append("a working directory had changes that no commit holds (+)")
    return notes


def rule_in_words(job: BisectJob) -> str:
    most = max(job.pairs, LEAST_PAIRS)
    return (
        f"Two settings are measured in turn, {job.seconds:g} s each, in {LEAST_PAIRS} to {most} "
        f"pairs. One is slower if the median ratio is at least {LEAST_GAIN:g} and p is at most "
        f"{LEVEL:g} (Wilcoxon's signed-rank test)."
    )


def print_progress(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)


def print_result(result: BisectResult) -> None:
    """Print the verdict, and how sure it is."""
    assert result.both is not None
    if not result.slower:
        print(_not_slower(result.both))
        return
    print(f"the {result.slower} is slower: {_gain(result.both)}")
    if result.outcome != FOUND:
        names = ", ".join(change.name for change in result.cause)
        print(printable(f"but no cause is proved; the nearest: {names}"))
        return
    _print_cause(result)
    assert result.alone is not None
    print(f"alone, it is slower: {_gain(result.alone)}")
    if len(result.cause) > 1:
        print("none of them can be left out: together they make the difference")


def _print_cause(result: BisectResult) -> None:
    for change in result.cause:
        print(printable(f"cause: {_named(change)}"))
    if result.commits:
        *untested, slow = result.commits
        print(printable(f"first slow commit: {slow}"))
        for commit in untested:
            print(printable(f"or this one, which does not run: {commit}"))
    if any(change.path == PYTHON.path for change in result.cause):
        print(printable(f"versions that differ: {', '.join(result.versions) or 'none'}"))


def _named(change: KeyChange) -> str:
    if change.path == COMMIT.path:
        return f"a commit from {change.before} to {change.after}"
    return f"{change.name}: {shown(change.before)} -> {shown(change.after)}"


def _gain(test: RateComparison) -> str:
    pairs = test.pairs
    low, high = pairs.quartiles
    return (
        f"{pairs.gain:.3f} times (quartiles {low:.3f} to {high:.3f}, "
        f"{plural(len(pairs.ratios), 'pair')}, p = {pairs.chance:.2g})"
    )


def _not_slower(test: RateComparison) -> str:
    if test.verdict == UNSURE:
        return (
            f"not proved: the ratio is {_gain(test)}, and its spread hides a difference of "
            f"{LEAST_GAIN - 1:.0%}; stop other programs, or raise pairs= or seconds="
        )
    return (
        f"no difference here and now: the ratio is {_gain(test)}; what differed may be the "
        "machine, its load, the page cache, or what is not measured"
    )
