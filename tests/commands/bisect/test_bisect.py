"""``paceline bisect`` as its users meet it."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.commands.bisect.sleeping_runs import bisected, sleeping_run, write_model
from tests.commands.bisect.test_commit_search import git

QUICK = ("seconds=0.05",)


@pytest.mark.slow
def test_a_change_of_ten_percent_among_eight_is_found(tmp_path):
    write_model(tmp_path)
    sleeping_run(tmp_path, "a", "model.pause_ms=100")
    others = ("seed=3", "report_every=5", "clip_norm=1.0", "optim.momentum=0.8", "optim.lr=0.01")
    more = ("model.width=9", "objective.label_smoothing=0.1")
    sleeping_run(tmp_path, "b", "model.pause_ms=110", *others, *more)
    done = bisected(tmp_path, "a", "b", "output=found.json", limit_s=600)
    assert "8 differences to measure" in done.out
    assert done.code == 0, done.err
    assert "cause: model.pause_ms: 100 -> 110" in done.out
    result = json.loads((tmp_path / "found.json").read_text())
    assert [cause["key"] for cause in result["cause"]] == ["model.pause_ms"]
    assert result["slower"] == "second"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_slow_change_of_two_ranks_is_found(tmp_path):
    write_model(tmp_path)
    ranks = ("parallel=ddp", "parallel.num_processes=2")
    sleeping_run(tmp_path, "a", *ranks, "model.pause_ms=100")
    sleeping_run(tmp_path, "b", *ranks, "model.pause_ms=200")
    done = bisected(tmp_path, "a", "b", *QUICK, "output=found.json", limit_s=800)
    assert done.code == 0, done.err
    assert "cause: model.pause_ms: 100 -> 200" in done.out
    result = json.loads((tmp_path / "found.json").read_text())
    assert [cause["key"] for cause in result["cause"]] == ["model.pause_ms"]


@pytest.mark.slow
def test_another_environment_is_found_with_its_versions(tmp_path):
    write_model(tmp_path)
    sleeping_run(tmp_path, "a")
    sleeping_run(tmp_path, "b", "seed=3")
    python = environment(tmp_path / "venv")
    done = bisected(tmp_path, "a", "b", f"python={python}", *QUICK)
    assert done.code == 0, done.err
    assert f"cause: python: {sys.executable}" in done.out
    assert "slow-package not there -> 2.0" in done.out


def environment(folder):
    """Make a virtual environment with our packages, and one more that makes steps slow."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "lib" / version / "site-packages"
    ours = sysconfig.get_path("purelib")  # whose own .pth files count, too
    (site / "ours.pth").write_text(f"import site; site.addsitedir({ours!r})")
    (site / "slow_package.py").write_text("MORE_MS = 50")
    facts = site / "slow_package-2.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-package\nVersion: 2.0\n")
    return folder / "bin" / "python"


@pytest.mark.slow
def test_the_first_slow_commit_is_found(tmp_path):
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("a/\nb/\ndigits/\noutputs/\n")
    commits = []
    for number in range(6):
        more = f"\n\nNUMBER = {number}\n"
        if number >= 3:
            more = more.replace("NUMBER", "MORE_MS = 50\nNUMBER")
        write_model(tmp_path, more)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", f"number {number}")
        commits.append(git(tmp_path, "rev-parse", "HEAD"))
        if number in (0, 5):
            sleeping_run(tmp_path, "a" if number == 0 else "b")
    done = bisected(tmp_path, "a", "b", "repo=.", *QUICK)
    assert done.code == 0, done.err
    assert f"cause: a commit from {commits[0]} to {commits[5]}" in done.out
    assert "number 3" in done.out.split("first slow commit: ")[1].splitlines()[0]
    assert len(git(tmp_path, "worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_sides_that_do_not_differ_here_end_with_code_ten(tmp_path):
    write_model(tmp_path)
    sleeping_run(tmp_path, "a", "model.pause_ms=100")
    sleeping_run(tmp_path, "b", "model.pause_ms=100", "seed=3")
    done = bisected(tmp_path, "a", "b", *QUICK)
    assert done.code == 10
    assert "slower:" not in done.out
    assert not (tmp_path / "outputs" / "bisect").exists()


@pytest.mark.parametrize(
    ("words", "number"),
    [
        ([], "C103"),
        (["a"], "C100"),
        (["a", "b", "c"], "C100"),
        (["a", "b", "before=c"], "C100"),
        (["none", "none"], "C345"),
        (["a", "b", "pairs=3"], "C101"),
        (["a", "b", "python=/none/python"], "C348"),
        (["a", "b", "output=none/x.json"], "C101"),
        (["a", "b", "piars=3"], "C102"),
    ],
)
def test_what_cannot_be_bisected_is_said_in_one_line(words, number):
    assert is_one_error_line(paceline("bisect", *words), number)
    assert not Path("outputs/bisect").exists()
