"""Commits on the way from one to another."""

import subprocess

import pytest

from framework.commands.bisect.commit_search import (
    commits_between,
    first_slow,
    title_of,
    worktrees,
)
from framework.errors import ConfigError


def git(folder, *words):
    place = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run([*place, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def committed(folder, text):
    (folder / "file.txt").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path):
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def test_the_way_leads_from_the_fast_commit_to_the_slow_one(repo):
    commits = [committed(repo, f"number {number}") for number in range(4)]
    assert commits_between(str(repo), commits[0], commits[3]) == commits
    assert commits_between(str(repo), commits[3], commits[1]) == commits[:0:-1]
    assert "number 2" in title_of(str(repo), commits[2])


def test_what_has_no_way_is_said(repo, tmp_path):
    first = committed(repo, "first")
    second = committed(repo, "second")
    git(repo, "checkout", "-q", first)
    third = committed(repo, "third")
    for folder, pair in (
        (repo, (second, third)),
        (repo, (first, "0" * 40)),
        (tmp_path, (first,) * 2),
    ):
        with pytest.raises(ConfigError, match="C349"):
            commits_between(str(folder), *pair)


def test_the_first_slow_commit_is_found_by_halving():
    for place in range(1, 20):
        asked = []
        commits = [str(number) for number in range(20)]
        slow = commits[place:]
        places = first_slow(commits, lambda own: asked.append(own) or own in slow)  # noqa: B023
        assert places == (place - 1, place)
        assert len(asked) <= 5


@pytest.mark.parametrize("broken", [{1}, {4, 5, 6}, {7, 8}, set(range(1, 9))])
def test_commits_that_do_not_run_are_neither_fast_nor_slow(broken):
    commits = [str(number) for number in range(10)]

    def is_slow(commit):
        return None if int(commit) in broken else int(commit) >= 7

    runs = [number for number in range(10) if number not in broken]
    fast = max(number for number in runs if number < 7)
    slow = min(number for number in runs if number >= 7)
    assert first_slow(commits, is_slow) == (fast, slow)


def test_the_files_of_commits_lie_apart_and_are_removed(repo, tmp_path):
    first, second = (committed(repo, text) for text in ("first", "second"))
    with worktrees(str(repo), str(tmp_path / "trees")) as trees:
        tree = trees.tree(first)
        assert trees.tree(first) == tree
        assert (tmp_path / "trees" / first[:12] / "file.txt").read_text() == "first"
        with pytest.raises(ConfigError, match="C349"):
            trees.tree("0" * 40)
    assert len(git(repo, "worktree", "list").splitlines()) == 1
    assert (repo / "file.txt").read_text() == "second"
    assert git(repo, "rev-parse", "HEAD") == second
