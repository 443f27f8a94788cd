import pytest

from framework.commands.own_keys import read_flag, read_name, read_number, split_words
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
    assert read_number(191, "seconds", "1.5", float, 1, 3600) == 1.5
    with pytest.raises(ConfigError, match=rf"C191.*seconds = {text}.*give 1 to 3600"):
        read_number(191, "seconds", text, float, 1, 3600)


@pytest.mark.parametrize("text", ["4", "2.5", "inf", ""])
def test_a_number_without_an_upper_bound_is_finite(text):
    assert read_number(195, "budget", "7", int, 5) == 7
    with pytest.raises(ConfigError, match=r"give 5 or more"):
        read_number(195, "budget", text, float, 5)


def test_a_whole_number_has_no_fraction():
    with pytest.raises(ConfigError, match="is not a whole number in range"):
        read_number(185, "repeats", "2.5", int, 1, 1000)


def test_a_name_loses_its_quotation_marks():
    assert read_name("'a b'") == "a b"
    assert read_name("null") is None
    assert read_name("") is None
