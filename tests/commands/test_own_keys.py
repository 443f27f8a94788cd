import pytest

from framework.commands.own_keys import read_flag, read_float, read_name, split_words
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


def test_a_flag_is_true_or_false():
    assert read_flag(191, "apply", "True")
    assert not read_flag(191, "apply", "false")
    with pytest.raises(ConfigError, match=r"C191.*apply = 1: is not a flag"):
        read_flag(191, "apply", "1")


@pytest.mark.parametrize("text", ["0.5", "3601", "nan", "soon"])
def test_a_number_outside_its_range_is_refused(text):
    assert read_float(191, "seconds", "1.5", 1, 3600) == 1.5
    with pytest.raises(ConfigError, match=rf"C191.*seconds = {text}.*give 1 to 3600"):
        read_float(191, "seconds", text, 1, 3600)


def test_a_name_loses_its_quotation_marks():
    assert read_name("'a b'") == "a b"
    assert read_name("null") is None
    assert read_name("") is None
