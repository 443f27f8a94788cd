"""``paceline trust``: what it remembers, and what an untrusted folder cannot gain."""

import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from framework.cli.arguments import granted
from framework.cli.trusted_folders import packages_in, trust, trust_file, trusted_here
from framework.errors import ConfigError
from tests.cli.command import config_of, is_one_error_line, paceline, refusal_of
from tests.saved_runs import change

CODE = (
    "from framework.model.digits_net import DigitsCNN\nclass Net(DigitsCNN): pass\n"
    "def records(item):\n    yield {'x': 1.0}\n"
)
NET = ("model._target_=mine.Net",)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Go to a folder with a module; the user's configuration is elsewhere."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("mine.py").write_text(CODE)
    return folder


def test_a_trusted_package_may_be_named_in_every_later_command(project):
    line = refusal_of(*NET)
    assert line.startswith("error[C105]")
    assert line.endswith("or trust this folder once: 'paceline trust'")
    done = paceline("trust", "yes=true")
    assert (done.code, done.err) == (0, "")
    assert "  mine  (1 file)\n" in done.out
    assert config_of(*NET)["model"]["_target_"] == "mine.Net"
    assert [path.name for path in project.iterdir()] == ["mine.py"]
    words = ["input=function", "input.function=mine.records", "input.items=2", "input.path=null"]
    done = paceline("pack", *words, "input.classes=null", "output.path=x.h5", "workers=1")
    assert done.code == 0, done.err
    Path("theirs.py").write_text(CODE)  # it was not there
    assert refusal_of("model._target_=theirs.Net").startswith("error[C105]")


def test_recipes_of_a_config_dir_elsewhere_may_not_name_a_trusted_package(project):
    trust(str(project), ["mine"])
    for folder in ("inside", "../elsewhere"):
        Path(folder, "recipes").mkdir(parents=True)
    assert granted(["--config-dir", "inside"]).trusted == ("mine",)
    assert granted(["--config-dir=../elsewhere"]).trusted == ()


def test_it_asks_and_without_a_terminal_wants_a_word(project, monkeypatch):
    done = paceline("trust", "yes=false")
    assert is_one_error_line(done, "C211")
    assert "mine" in done.out
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    for answer, code in (("", 2), ("n", 2), ("y", 0)):
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert paceline("trust").code == code
        assert trusted_here() == ("mine",) * (code == 0)


def _moved(folder):
    folder.rename(folder.with_name("moved"))
    return folder.with_name("moved")


def _copied(folder):
    return Path(shutil.copytree(folder, folder.with_name("copy")))


def _replaced(folder):
    """Unpack another folder at the same place, which may even get the same inode."""
    shutil.rmtree(folder)
    folder.mkdir()
    return folder


def _linked(folder):
    folder.rename(folder.with_name("moved"))
    folder.symlink_to("moved")
    return folder


@pytest.mark.parametrize("change_folder", [_moved, _copied, _replaced, _linked])
def test_another_folder_is_asked_for_again(project, change_folder):
    trust(str(project), ["mine"])
    assert trusted_here() == ("mine",)
    os.chdir(project.parent)
    os.chdir(change_folder(project))
    Path("mine.py").write_text(CODE)
    assert trusted_here() == ()


def test_names_that_python_takes_from_elsewhere_are_not_trusted(project):
    for name in ("json", "torch", "framework", "conftest", "test_mine", "no-name"):
        Path(f"{name}.py").touch()
    for folder in ("other", "empty", "tests"):
        Path(folder).mkdir()
    Path("other/part.py").touch()
    Path("tests/part.py").touch()
    assert packages_in(str(project)) == ["mine", "other"]


def test_a_package_that_is_installed_later_is_not_trusted(project, tmp_path, monkeypatch):
    trust(str(project), ["mine"])
    Path(tmp_path / "site").mkdir()
    Path(tmp_path / "site/mine.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    assert trusted_here() == ()


def test_a_folder_cannot_bring_its_own_trust(project, monkeypatch):
    trust(str(project), ["mine"])
    Path(".config/paceline").mkdir(parents=True)
    shutil.copy(trust_file(), ".config/paceline/trust.json")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(project / ".config"))
    assert trusted_here() == ()
    with pytest.raises(ConfigError, match=r"C211.*set XDG_CONFIG_HOME"):
        trust(str(project), ["mine"])
    monkeypatch.setenv("XDG_CONFIG_HOME", ".config")  # relative: not the standard's
    monkeypatch.setenv("HOME", "/home/somebody")
    assert trust_file() == Path("/home/somebody/.config/paceline/trust.json")


@pytest.mark.parametrize("text", ["{", "[1]", '{"PLACE": 3}', '{"PLACE": {"inode": 0}}'])
def test_a_damaged_file_trusts_nothing(project, text):
    trust_file().parent.mkdir(parents=True)
    trust_file().write_text(text.replace("PLACE", str(project)))
    assert trusted_here() == ()
    if text in ("{", "[1]"):
        with pytest.raises(ConfigError, match=r"C211.*remove it"):
            trust(str(project), ["mine"])
    else:
        trust(str(project), ["mine"])
        assert trusted_here() == ("mine",)


def test_other_folders_stay_trusted(project):
    trust(str(project), ["mine"])
    other = project.with_name("other")
    other.mkdir()
    trust(str(other), ["other"])
    known = json.loads(trust_file().read_text())
    assert {place: entry["packages"] for place, entry in known.items()} == {
        str(project): ["mine"],
        str(other): ["other"],
    }


def test_a_folder_without_packages_is_nothing_to_trust(project):
    Path("mine.py").unlink()
    assert is_one_error_line(paceline("trust", "yes=true"), "C211")


def test_a_run_directory_that_was_made_elsewhere_gains_nothing(project):
    trust(str(project), ["mine"])
    words = [*NET, "max_steps=1", "hydra.run.dir=run", "recipes=digits"]
    assert paceline("train", *words).code == 0
    for words in (["evaluate", "run"], ["train", "resume=run", "max_steps=2"], ["evaluate", "run"]):
        assert paceline(*words).code == 0
    shutil.copytree("run", "copy")  # its run.json says all that the other's does
    for words in (["evaluate", "copy"], ["train", "resume=copy", "max_steps=3"]):
        done = paceline(*words)
        assert is_one_error_line(done, "C105")
        assert "note: " in done.err
        assert paceline(*words, "allow_targets=[mine]").code == 0
    for forged in ("", "ü" * 64, None):
        change(Path("copy/run.json"), trust=forged)
        assert is_one_error_line(paceline("evaluate", "copy"), "C105")


def test_ranks_and_the_jobs_of_a_sweep_know_it(project):
    trust(str(project), ["mine"])
    words = [*NET, "max_steps=1", "recipes=digits", "parallel=ddp", "parallel.num_processes=1"]
    done = paceline("train", "-m", "seed=1,2", *words, "hydra.sweep.dir=sweep")
    assert done.code == 0, done.err
    assert len(list(Path("sweep").glob("*/summary.json"))) == 2
