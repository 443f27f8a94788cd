import pytest

from framework.system import redaction
from framework.system.redaction import note, noted, redacted, restored


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Note variables that other tests do not know."""
    monkeypatch.setattr(redaction, "_names", set())
    values = {"TOKEN": "hunter2", "LONGER": "hunter2-of-mine", "SHORT": "no"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    note(["TOKEN", "LONGER", "SHORT", "GONE"])


def test_what_was_noted_is_known_in_order():
    note(["TOKEN", "A"])
    assert noted() == ["A", "GONE", "LONGER", "SHORT", "TOKEN"]


def test_values_are_replaced_at_every_depth_and_keys_stay():
    value = {"hunter2": ["hunter2", {"a": ("x=hunter2&y", 3, None, True)}], "b": 1.5}
    written = {
        "hunter2": ["${oc.env:TOKEN}", {"a": ["x=${oc.env:TOKEN}&y", 3, None, True]}],
        "b": 1.5,
    }
    assert redacted(value) == written


def test_the_longest_value_is_replaced_first():
    assert redacted("hunter2-of-mine hunter2") == "${oc.env:LONGER} ${oc.env:TOKEN}"


def test_short_values_and_variables_that_nobody_read_stay(monkeypatch):
    monkeypatch.setenv("UNREAD", "something else")
    assert redacted("no, something else") == "no, something else"
    monkeypatch.setenv("SHORT", "four")
    assert redacted("no, four") == "no, ${oc.env:SHORT}"


def test_a_value_is_found_as_messages_show_it(monkeypatch):
    monkeypatch.setenv("TOKEN", "it's\n  long")
    for text in ("it's\n  long", "it's\\n  long", "it's long"):
        assert redacted(f"say {text}, twice: {text}").count("${oc.env:TOKEN}") == 2


def test_restored_gives_back_what_redacted_took():
    text = "user:hunter2@host/hunter2-of-mine?no"
    assert restored(redacted(text)) == text


def test_a_variable_that_is_not_set_keeps_its_reference():
    assert restored("x ${oc.env:GONE}, ${oc.env: TOKEN}") == "x ${oc.env:GONE}, hunter2"
