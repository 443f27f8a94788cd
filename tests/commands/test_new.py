"""``paceline new``: a project that trains at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import is_one_error_line, paceline
from tests.saved_runs import summary_of


def test_a_new_project_trains_at_once_and_passes_its_test(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    done = paceline("new", "my-waves")
    assert done.code == 0, done.err
    assert "cd my-waves && paceline trust yes=true && paceline train experiment=my-w" in done.out
    folder = Path("my-waves")
    assert len("\n".join(path.read_text() for path in folder.rglob("*.*")).split("\n")) < 90
    assert paceline("trust", "yes=true", cwd=folder).code == 0
    done = paceline("train", "experiment=my-waves", "hydra.run.dir=run", cwd=folder)
    assert done.code == 0, done.err
    assert summary_of(folder / "run")["best"]["within_10_percent"] > 0.7
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


@pytest.mark.parametrize(
    "name", ["9x", "class", "torch", "digits", "test_mine", "no/where", "there", ".", "a b"]
)
def test_a_name_that_could_not_train_is_refused(name):
    Path("there").mkdir()
    assert is_one_error_line(paceline("new", name), "C212")
    assert not list(Path("there").iterdir())
