import functools
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.system.code_digest import digest_of, files_digest, user_sources

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


@pytest.fixture
def mine(monkeypatch):
    """Write a user's module, and yield it imported.

    It imports a package, and another module when it is called.
    """
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
    assert sorted(user_sources(["mine"])) == names
    assert not user_sources(["torch", "framework.errors", "no_such_module"])


@pytest.mark.parametrize("changed", ["mine.py", "helpers/more.py", "late.py"])
def test_a_change_in_any_of_them_changes_the_digest(mine, changed):
    before = digest_of(functools.partial(mine.make, 3))
    Path("unused.py").write_text("# changed")
    assert digest_of(functools.partial(mine.make, 3)) == before
    with open(changed, "a") as file:
        file.write("# changed\n")
    after = digest_of(functools.partial(mine.make, 3))
    assert after.files != before.files
    assert after.state == before.state


def test_an_installed_package_counts_if_it_is_named(mine, monkeypatch):
    Path("site-packages/wheel_of_mine").mkdir(parents=True)
    Path("site-packages/wheel_of_mine/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(Path("site-packages").absolute()))
    assert not user_sources(["wheel_of_mine"])
    assert list(user_sources(["wheel_of_mine"], ["wheel_of_mine"])) == ["wheel_of_mine"]
    assert files_digest(["wheel_of_mine"]) == files_digest([])


@pytest.mark.parametrize(
    ("state", "other"),
    [(1, 2), ({"a"}, {"b"}), (torch.zeros(2), torch.ones(2)), (np.zeros(2), np.ones(2))],
)
def test_the_state_counts(mine, state, other):
    assert digest_of(mine.Maker(state)) == digest_of(mine.Maker(state))
    assert digest_of(mine.Maker(state)).state != digest_of(mine.Maker(other)).state


@pytest.mark.parametrize("thing", [threading.Lock(), lambda item: item])
def test_what_cannot_be_pickled_has_files_and_no_state(mine, thing):
    maker = mine.Maker(thing)
    digest = digest_of(maker)
    assert digest.state is None
    assert digest.fault
    assert digest.files == digest_of(mine.Maker(0)).files or callable(thing)
