"""Errors and digests of the user's code, and packages of extras."""

import functools
import json
import pickle
import shlex
import subprocess
import sys
import threading
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.requirements import Requirement

from framework.config.targets import ROOT
from framework.errors import DataError, ResourceError, UserCodeError, UserRecordError, error_kinds
from framework.measure.statistics import claim
from framework.system import user_code
from tests.cli.command import is_one_error_line, paceline

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPORT = "pip install jinja2 'matplotlib>=3.9'"
MINE = """
import torch
from helpers.tools import scaled

class Maker:
    def __init__(self, state):
        self.state = state

def make(item):
    import late
    return {"x": scaled(item)}
"""


def caught(call):
    try:
        call()
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError


def fails():
    raise LookupError("a  user's\nmistake")


def test_an_error_of_the_user_names_file_line_and_function():
    line = fails.__code__.co_firstlineno + 1
    text = str(user_code.user_error(caught(fails), about="record 5", fix="mend it"))
    assert text.startswith("error[U100]: ")
    assert text.endswith(
        f"test_user_code.py:{line}: in fails: LookupError: a user's mistake (record 5); mend it"
    )


def test_what_a_library_raises_belongs_to_the_user_who_called_it():
    error = user_code.user_error(caught(lambda: torch.zeros(2, 3) @ torch.zeros(2, 3)))
    assert "test_user_code.py" in str(error)
    assert "json" not in str(user_code.user_error(caught(lambda: json.loads("{"))))


def test_the_cause_is_named_if_the_error_itself_was_made_by_a_library():
    error = RuntimeError("generator raised")
    error.__cause__ = caught(fails)
    assert "in fails: LookupError: a user's mistake" in str(user_code.user_error(error))


def test_a_file_that_cannot_be_parsed_is_named_with_its_line(tmp_path):
    (tmp_path / "broken.py").write_text("x = 1\ndef (:\n")
    sys.path.append(str(tmp_path))
    try:
        error = caught(lambda: __import__("broken"))
    finally:
        sys.path.remove(str(tmp_path))
    assert "broken.py:2: SyntaxError: " in str(user_code.user_error(error))


def test_an_error_of_a_record_can_be_skipped_and_sent():
    error = user_code.user_error(caught(fails), kind=UserRecordError)
    assert isinstance(error, DataError | UserCodeError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.exit_code, type(again)) == (str(error), 9, UserRecordError)
    assert error_kinds()["UserRecordError"] is UserRecordError


@pytest.fixture
def mine(monkeypatch):
    """Write and yield a user's module that imports a package, and another one when called."""
    Path("helpers").mkdir()
    Path("helpers/__init__.py").write_text("")
    Path("helpers/tools.py").write_text("from . import more\n\ndef scaled(item): return item\n")
    Path("helpers/more.py").write_text("")
    Path("late.py").write_text("")
    Path("unused.py").write_text("")
    Path("mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    import mine

    yield mine
    for name in ("mine", "helpers", "helpers.tools", "helpers.more"):
        sys.modules.pop(name, None)


def test_the_sources_are_those_of_the_user_that_are_imported(mine):
    names = ["helpers", "helpers.more", "helpers.tools", "late", "mine"]
    assert sorted(user_code.user_sources(["mine"])) == names
    assert not user_code.user_sources(["torch", "framework.errors", "no_such_module"])


@pytest.mark.parametrize("changed", ["mine.py", "helpers/more.py", "late.py"])
def test_a_change_in_any_of_them_changes_the_digest(mine, changed):
    before = user_code.digest_of(functools.partial(mine.make, 3))
    Path("unused.py").write_text("# changed")
    assert user_code.digest_of(functools.partial(mine.make, 3)) == before
    with open(changed, "a") as file:
        file.write("# changed\n")
    after = user_code.digest_of(functools.partial(mine.make, 3))
    assert after.files != before.files
    assert after.state == before.state


def test_an_installed_package_counts_if_it_is_named(mine, monkeypatch):
    Path("site-packages/wheel_of_mine").mkdir(parents=True)
    Path("site-packages/wheel_of_mine/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(Path("site-packages").absolute()))
    assert not user_code.user_sources(["wheel_of_mine"])
    assert list(user_code.user_sources(["wheel_of_mine"], ["wheel_of_mine"])) == ["wheel_of_mine"]
    assert user_code.files_digest(["wheel_of_mine"]) == user_code.files_digest([])


@pytest.mark.parametrize(
    ("state", "other"),
    [(1, 2), ({"a"}, {"b"}), (torch.zeros(2), torch.ones(2)), (np.zeros(2), np.ones(2))],
)
def test_the_state_counts(mine, state, other):
    assert user_code.digest_of(mine.Maker(state)) == user_code.digest_of(mine.Maker(state))
    digests = [user_code.digest_of(mine.Maker(own)).state for own in (state, other)]
    assert digests[0] != digests[1]


@pytest.mark.parametrize("thing", [threading.Lock(), lambda item: item])
def test_what_cannot_be_pickled_has_files_and_no_state(mine, thing):
    maker = mine.Maker(thing)
    digest = user_code.digest_of(maker)
    assert digest.state is None
    assert digest.fault
    assert digest.files == user_code.digest_of(mine.Maker(0)).files or callable(thing)


def test_a_missing_package_is_named_as_the_registry_knows_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ResourceError, match=r"R112\]: jinja2: is not installed") as raised:
        user_code.needed("jinja2", "report")
    assert str(raised.value).endswith(f"; {REPORT}")
    user_code.needed("matplotlib", "report")  # which is installed


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_every_extra_can_be_named(extra):
    names = [Requirement(word).name for word in shlex.split(user_code.pip_install(extra))[2:]]
    wanted = PROJECT["optional-dependencies"][extra]
    assert set(names) == {Requirement(word).name for word in wanted}


def test_a_search_names_what_it_needs_before_it_measures(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    done = paceline("tune", "data=synthetic", "budget=600")
    assert is_one_error_line(done, "R112")
    assert done.last_line.endswith("pip install scipy")


def test_without_the_extra_no_choice_is_called_the_fastest(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    zeros = [[0.0] * 5] * 2
    verdict = claim([[1.0, 1.1, 1.2, 1.3, 1.4], [2.0, 2.1, 2.2, 2.3, 2.4]], zeros, zeros)
    assert (verdict.highest, verdict.proved) == (1, False)
    assert "pip install scipy" in verdict.words


def test_no_command_imports_them_before_it_needs_them():
    code = (
        "import sys, framework.main; from importlib import import_module\n"
        "for name in framework.main.COMMANDS:\n"
        "    module = import_module(f'framework.commands.{name}')\n"
        "    hasattr(module, 'main') or import_module(f'framework.commands.{name}.{name}')\n"
        "print({'matplotlib', 'jinja2', 'sklearn', 'scipy'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
