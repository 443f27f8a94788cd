"""Find what makes one side slower: measure both, then halve what differs."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import sqrt
from typing import Any, NamedTuple, final

from framework.commands.bisect.commit_search import (
    Worktrees,
    commits_between,
    first_slow,
    title_of,
)
from framework.commands.bisect.compared_rates import UNSURE, RateComparison, compared
from framework.commands.bisect.config_changes import (
    KeyChange,
    applied,
    changes_of,
    reversed_changes,
)
from framework.commands.bisect.delta_debug import smallest_part
from framework.commands.bisect.meter import Environment, MeasuredSetting, Meter, Refused
from framework.commands.bisect.sides import Side, differing_packages
from framework.commands.paired_test import LEAST_GAIN
from framework.errors import ConfigError, ResourceError

PYTHON = KeyChange(("python",), "", "")
COMMIT = KeyChange(("commit",), "", "")
RUNS = "see that 'paceline train' runs with its settings"
SHOWN = 60  # characters of a value in a line
FOUND, ALIKE, UNPROVED = "found", "no difference here", "not proved"


class BisectJob(NamedTuple):
    """What to find out, and how.

    Attributes:
        before: The first side.
        after: The second side.
        allowed: Prefixes of the user's packages.
        pairs: The most pairs of measurements of a test.
        seconds: Of a measurement.
        python: The interpreter of the second side; None: this one.
        repo: The repository whose commits are checked out; None: none are.
    """

    before: Side
    after: Side
    allowed: tuple[str, ...]
    pairs: int
    seconds: float
    python: str | None
    repo: str | None


@dataclass
class BisectResult:
    """What was found out.

    Attributes:
        outcome: ``found``, ``no difference here`` or ``not proved``.
        slower: Which side is slower here and now: ``first``, ``second`` or "".
        both: The test of the two sides.
        cause: The changes that make the slower side slow.
        alone: The test of the faster side with only these changes; None if it was not made.
        versions: The packages whose versions differ between the measured environments.
        commits: The first slow commit, after those before it that do not run, if commits were
            searched.
        tests: Every test on the way: what was changed, and the result in words.
    """

    outcome: str
    slower: str = ""
    both: RateComparison | None = None
    cause: list[KeyChange] = field(default_factory=list[KeyChange])
    alone: RateComparison | None = None
    versions: list[str] = field(default_factory=list[str])
    commits: list[str] = field(default_factory=list[str])
    tests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def as_json(self) -> dict[str, Any]:
        return {
            "outcome": self.outcome,
            "slower": self.slower,
            "both": self.both and _test_as_json(self.both),
            "cause": [_change_as_json(change) for change in self.cause],
            "alone": self.alone and _test_as_json(self.alone),
            "versions": self.versions,
            "commits": self.commits,
            "tests": self.tests,
        }


def _test_as_json(test: RateComparison) -> dict[str, Any]:
    return {"verdict": test.verdict, "gain": test.pairs.gain, **asdict(test.pairs)}


def _change_as_json(change: KeyChange) -> dict[str, Any]:
    return {"key": change.name, "from": shown(change.before), "to": shown(change.after)}


def shown(value: Any) -> str:
    """Return a value in a few characters. Of a block, its target tells the most."""
    if isinstance(value, dict) and "_target_" in value:
        return str(value["_target_"]).rpartition(".")[2]
    text = " ".join(str(value).split())
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def differences(job: BisectJob) -> list[KeyChange]:
    """Return all changes from the first side to the second, measured or not.

    ConfigError C346 if there is nothing to measure, C349 if a commit was not recorded.
    """
    changes = changes_of(job.before.config, job.after.config)
    if job.python is not None:
        changes.append(PYTHON._replace(before=sys.executable, after=job.python))
    if job.repo is not None:
        commits = [plain_commit(side, job.repo) for side in (job.before, job.after)]
        if commits[0] != commits[1]:
            changes.append(COMMIT._replace(before=commits[0], after=commits[1]))
    if not any(change.is_measured for change in changes):
        what = "no key differs that decides the speed of a training step"
        fix = "compare other sides, or add python= (another environment) or repo= (commits)"
        raise ConfigError(346, f"{job.before.name}, {job.after.name}", what, fix)
    return changes


def plain_commit(side: Side, repo: str) -> str:
    """Return the recorded commit of a side. ConfigError C349 if there is none."""
    if side.commit is None:
        what = f"no commit was recorded for {side.name}"
        fix = "train in a git repository, or leave repo out"
        raise ConfigError(349, f"repo = {repo}", what, fix)
    return side.commit.rstrip("+")


@final
class CauseSearch:
    """A search for the cause. ``run`` does it.

    Args:
        job: What to find out.
        changes: What differs, from the first side to the second.
        meter: Measures settings.
        trees: Folders of commits; None without a repository.
        say: Prints what was measured.
    """

    def __init__(
        self,
        job: BisectJob,
        changes: Sequence[KeyChange],
        meter: Meter,
        trees: Worktrees | None,
        say: Callable[[str], None],
    ) -> None:
        self.job = job
        self.meter = meter
        self.say = say
        self.result = BisectResult(UNPROVED)
        self._trees = trees
        self._changes = [change for change in changes if change.is_measured]
        self._fast = job.before.config
        self._least_gain = LEAST_GAIN

    def run(self) -> BisectResult:
        result = self.result
        result.versions = self._versions()
        self._warm_up()
        self.say("both sides, here and now:")
        self._test_both()
        if not result.slower:
            return result
        result.cause = smallest_part(self._changes, lambda part: bool(self._has_effect(part)))
        base: list[KeyChange] = []
        part = result.cause
        if len(part) == 1 and part[0].path == COMMIT.path:
            base, part = self._first_slow_commit(part[0])
        self.say("the cause alone, measured once more:")
        result.alone = self._test(part, base)
        if result.alone is not None and result.alone.is_slower:
            result.outcome = FOUND
        return result

    def _test_both(self) -> None:
        """Measure both sides, and put the faster one first. ResourceError R341 if one fails."""
        slower = "second"
        test = self._test(self._changes)
        if test is not None and test.pairs.gain < 1:
            # the other way round, and measured anew: the test must not choose its own data
            self._changes = reversed_changes(self._changes)
            self._fast = self.job.after.config
            slower = "first"
            test = self._test(self._changes)
        if test is None:
            names = f"{self.job.before.name}, {self.job.after.name}"
            _, words = self.result.tests[-1]
            raise ResourceError(341, names, f"run at first, but not each time ({words})", RUNS)
        self.result.both = test
        if test.is_slower:
            self.result.slower = slower
            # of a cause, at least half of the effect is wanted
            self._least_gain = max(LEAST_GAIN, sqrt(test.pairs.gain))
        elif test.verdict != UNSURE:
            self.result.outcome = ALIKE

    def _warm_up(self) -> None:
        """Visit both sides, since the first visits are cold. ResourceError R341 if one fails."""
        for side, part in ((self.job.before, []), (self.job.after, self._changes)):
            try:
                self.meter.rate(self._setting(part))
            except Refused as refusal:
                what = f"does not run here ({refusal})"
                raise ResourceError(341, side.name, what, RUNS) from refusal

    def _has_effect(self, part: Sequence[KeyChange]) -> bool | None:
        """Return whether some changes make the faster side slow; None if they do not run."""
        test = self._test(part)
        if test is None:
            return None
        # an unsure test counts by its median, since what it decides is tested again
        return test.pairs.gain >= self._least_gain

    def _test(
        self, part: Sequence[KeyChange], base: Sequence[KeyChange] = ()
    ) -> RateComparison | None:
        """Test whether the faster side becomes slower by some changes. None if it does not run.

        It is compared with the faster side with the changes in ``base``.
        """
        names = ", ".join(change.name for change in part)
        fast, slow = (partial(self.meter.rate, self._setting(changes)) for changes in (base, part))
        try:
            test = compared(fast, slow, self.job.pairs, self._least_gain)
        except Refused as refusal:
            self._note(names, f"does not run: {refusal}")
            return None
        self._note(names, test.words)
        return test

    def _note(self, names: str, words: str) -> None:
        self.result.tests.append((names, words))
        self.say(f"  {names}: {words}")

    def _setting(self, part: Sequence[KeyChange]) -> MeasuredSetting:
        """Return the faster side with some changes."""
        keys = [change for change in part if change.path not in (PYTHON.path, COMMIT.path)]
        places = {change.path: change.before for change in self._changes}
        places |= {change.path: change.after for change in part}
        environment = Environment(places.get(PYTHON.path, sys.executable))
        if COMMIT.path in places:
            environment = environment._replace(tree=self._tree(places[COMMIT.path]))
        return MeasuredSetting(applied(self._fast, keys), environment)

    def _tree(self, commit: str) -> str:
        assert self._trees is not None
        return self._trees.tree(commit)

    def _first_slow_commit(self, change: KeyChange) -> tuple[list[KeyChange], list[KeyChange]]:
        """Find the first slow commit. Return the changes to the last fast one and to it."""
        repo = self.job.repo
        assert repo is not None
        commits = commits_between(repo, change.before, change.after)
        self.say(f"{len(commits)} commits lie between:")
        fast, slow = first_slow(
            commits, lambda commit: self._has_effect([change._replace(after=commit)])
        )
        self.result.commits = [title_of(repo, commit) for commit in commits[fast + 1 : slow + 1]]
        base, part = (change._replace(after=commits[place]) for place in (fast, slow))
        return [base], [part]

    def _versions(self) -> list[str]:
        """Return which packages differ between the two interpreters."""
        if self.job.python is None:
            return []
        own, other = (
            self.meter.versions(Environment(p)) for p in (sys.executable, self.job.python)
        )
        return [
            f"{name} {own.get(name, 'not there')} -> {other.get(name, 'not there')}"
            for name in differing_packages(own, other)
        ]
