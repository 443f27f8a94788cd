import os
import sys

import pytest

from framework.cli.allowed import VARIABLE, Grant, allowed_targets, granted
from framework.errors import ConfigError


@pytest.fixture(autouse=True)
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_grant_is_a_typed_word_or_the_variable(monkeypatch):
    monkeypatch.setenv(VARIABLE, "theirs")
    assert granted(["epochs=1", "+allow_targets=[mine]"]) == Grant(True, "theirs")
    monkeypatch.delenv(VARIABLE)
    assert granted(["epochs=1"]) == Grant(False, "")


def test_typed_and_exported_packages_are_allowed_and_found_in_this_directory():
    allowed = allowed_targets({"allow_targets": ["mine"]}, Grant(True, "theirs"))
    assert {"mine.", "theirs."} <= set(allowed)
    assert os.getcwd() in sys.path


def test_nothing_is_allowed_that_nobody_named():
    assert allowed_targets({}, Grant(False, "")) == ()
    assert os.getcwd() not in sys.path


@pytest.mark.parametrize(
    ("given", "typed", "number"), [(["mine"], False, "C105"), ("mine", True, "C101")]
)
def test_a_file_may_not_allow_and_a_word_is_no_list(given, typed, number):
    with pytest.raises(ConfigError, match=number):
        allowed_targets({"allow_targets": given}, Grant(typed, ""))
