"""The commits between two others, each checked out in a folder of its own."""

import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from framework.errors import ConfigError
from framework.system.stopping import undone

GIT_S = 60  # seconds that a call of git may take


def commits_between(repo: str, fast: str, slow: str) -> list[str]:
    """Return the commits on the way from ``fast`` to ``slow``, both included.

    ConfigError C349 for a folder that is no repository, commits that it lacks, and commits of which
    neither is an ancestor of the other.
    """
    where = f"repo = {repo}"
    for commit in (fast, slow):
        if _git(repo, "cat-file", "-e", f"{commit}^{{commit}}") is None:
            what = f"is no git repository with the commit {commit}"
            raise ConfigError(349, where, what, "give the repository that both were trained from")
    for old, new in ((fast, slow), (slow, fast)):
        way = _git(repo, "rev-list", "--reverse", "--ancestry-path", f"{old}..{new}")
        if way:
            commits = [old, *way.split()]
            return commits if old == fast else commits[::-1]
    what = f"has no way from {fast[:10]} to {slow[:10]}: neither is an ancestor of the other"
    raise ConfigError(349, where, what, "compare each with their common ancestor")


def title_of(repo: str, commit: str) -> str:
    """Return a short name of a commit, with its date and subject."""
    return _git(repo, "log", "-1", "--format=%h (%as, %s)", commit) or commit


def first_slow(commits: Sequence[str], is_slow: Callable[[str], bool | None]) -> tuple[int, int]:
    """Return the places of the last fast commit and the first slow one, by halving.

    Between them are only commits that do not run.

    Args:
        commits: In their order. The first is fast, the last slow.
        is_slow: Measures a commit. None: it does not run.
    """
    left = list(commits)  # without those that do not run
    low = 0
    high = len(left) - 1
    while high - low > 1:
        middle = (low + high) // 2
        slow = is_slow(left[middle])
        if slow is None:
            del left[middle]
            high -= 1
        elif slow:
            high = middle
        else:
            low = middle
    return commits.index(left[low]), commits.index(left[high])


class Worktrees:
    """Folders with the files of commits. The repository's own files stay as they are."""

    def __init__(self, repo: str, folder: Path) -> None:
        self._repo = repo
        self._folder = folder
        self._trees: dict[str, Path] = {}

    def tree(self, commit: str) -> str:
        """Return the folder of a commit. ConfigError C349 if git cannot check it out."""
        if commit not in self._trees:
            path = self._folder / commit[:12]
            self._trees[commit] = path  # a signal may come while git checks it out
            if _git(self._repo, "worktree", "add", "--detach", str(path), commit) is None:
                what = f"git worktree cannot check out {commit}"
                raise ConfigError(349, f"repo = {self._repo}", what, "look at 'git worktree list'")
        return str(self._trees[commit])

    def remove(self) -> None:
        for path in self._trees.values():
            with suppress(ConfigError):
                # Twice: a checkout that did not end has locked it.
                _git(self._repo, "worktree", "remove", "--force", "--force", str(path))
        self._trees.clear()


@contextmanager
def worktrees(repo: str, folder: str) -> Generator[Worktrees]:
    """Yield folders of commits below ``folder``, which are removed at the end."""
    trees = Worktrees(repo, Path(folder))
    with undone(lambda _: trees.remove()):
        try:
            yield trees
        finally:
            trees.remove()


def _git(repo: str, *words: str) -> str | None:
    """Return what git prints; None if it fails. ConfigError C349 without git or a folder."""
    command = ["git", "-C", repo, *words]
    try:
        done = subprocess.run(  # noqa: S603  # git itself
            command, capture_output=True, text=True, timeout=GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        what = f"git cannot be used ({error})"
        raise ConfigError(349, f"repo = {repo}", what, "install git, or leave repo out") from error
    return done.stdout.strip() if done.returncode == 0 else None
