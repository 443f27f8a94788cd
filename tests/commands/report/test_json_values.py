import pytest

from framework.commands.report.json_values import (
    LONGEST,
    command_of,
    load,
    shown,
)


@pytest.mark.parametrize(
    "text", ["", "{", "[1, 2]", '"a"', "[" * 100_000, '{"a": ' + "9" * 5000 + "}", "\x00\xff"]
)
def test_a_file_that_holds_no_object_is_empty(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text.encode("latin-1"))
    assert load(tmp_path / "a.json") == {}
    assert load(tmp_path / "absent.json") == {}


def test_what_is_shown_is_one_line_of_letters_and_not_endless():
    assert shown("a\n\tb\x1b[31m\x00\udcff") == "a b\\x1b[31m\\x00\\udcff"
    assert shown({"a": [1]}) == '{"a": [1]}'
    assert len(shown("x" * 10_000)) == LONGEST


def test_a_command_can_be_typed_again():
    assert (
        command_of(["paceline train", "-m", "a=b c", "d='e'"])
        == "paceline train -m 'a=b c' 'd='\"'\"'e'\"'\"''"
    )
    assert command_of(["/a folder/bin/paceline", "train"]) == "paceline train"
    assert command_of("x") == ""
