from pathlib import Path

import pytest

from framework.cli.own_keys import check_output, read_keys, split_words
from framework.config.rule import Rule
from framework.errors import ConfigError


def test_the_keys_of_a_command_are_separated_from_the_other_words():
    words = split_words(["a=1", "loader=plain", "-m", "a=2", "a"], ["a", "b"])
    assert words == ({"a": "2"}, ["loader=plain", "-m", "a"], None)


@pytest.mark.parametrize("words", [["--config-dir", "."], ["-cd", "."], ["--config-dir=."]])
def test_the_config_dir_is_no_override(words):
    assert split_words([*words, "x=1"], []) == ({}, ["x=1"], ".")


def test_a_config_dir_must_be_a_folder():
    with pytest.raises(ConfigError, match=r"C104.*no such folder"):
        split_words(["--config-dir", "nowhere"], [])


@pytest.mark.parametrize("path", [None, "new.json", "there/new.json"])
def test_a_file_can_be_written_to_a_folder_that_exists(path):
    Path("there").mkdir()
    check_output(path, 191)


@pytest.mark.parametrize(
    ("path", "what"), [("no/new.json", "does not exist"), ("there", "is a folder"), ("", "folder")]
)
def test_an_output_that_cannot_be_a_file_is_refused(path, what):
    Path("there").mkdir()
    with pytest.raises(ConfigError, match=f"C191.*{what}"):
        check_output(path, 191)


RULES = {
    "apply": Rule(bool, number=191),
    "seconds": Rule(float, 1, 3600, number=191),
    "repeats": Rule(int, 1, 1000, number=185),
    "budget": Rule(float, 5, number=195),
    "name": Rule(str | None),
}


def _read(key, text):
    return read_keys({key: text}, RULES)[key]


def test_a_flag_is_true_or_false():
    assert _read("apply", "True")
    assert not _read("apply", "false")
    with pytest.raises(ConfigError, match=r"C191.*apply = 1: must be true or false"):
        _read("apply", "1")


@pytest.mark.parametrize("text", ["0.5", "3601", "nan", "soon"])
def test_a_text_that_is_no_number_in_the_range_is_refused(text):
    assert _read("seconds", "1.5") == 1.5
    with pytest.raises(ConfigError, match=rf"C191.*seconds = {text}.*from 1 to 3600"):
        _read("seconds", text)


@pytest.mark.parametrize("text", ["4", "2.5", "inf", ""])
def test_infinity_and_numbers_below_the_least_are_refused(text):
    assert _read("budget", "7") == 7
    with pytest.raises(ConfigError, match=r"C195.*of at least 5"):
        _read("budget", text)


def test_a_whole_number_has_no_fraction():
    with pytest.raises(ConfigError, match="must be a whole number from 1 to 1000"):
        _read("repeats", "2.5")
