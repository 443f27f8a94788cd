from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from framework.cli.arguments import (
    block_words,
    check_words,
    literal,
    option,
    quoted,
)
from framework.errors import ConfigError
from tests.cli.command import paceline
from tests.faults.forked import is_one_line


@pytest.mark.parametrize(
    ("words", "value"),
    [(["--name", "x"], "x"), (["--name=x=y"], "x=y"), (["-n", "x"], "x"), (["--name"], None)],
)
def test_an_option_has_the_value_behind_it(words, value):
    assert option(words, "--name", "-n") == value


@pytest.mark.parametrize("value", ["", "a", 'a"b', "a\\b", 'a\\"b', "a\\", "{[(,$", "Größe (1)"])
def test_a_quoted_value_is_read_literally(value):
    parsed = OverridesParser.create().parse_override(f"key={quoted(value)}")
    assert str(parsed.value()) == value


def test_what_hydra_can_read_and_lists_are_left_as_they_are():
    words = [
        "epochs=3",
        "-m",
        "--config-dir=ä",
        "a=[ü",
        "a={ü",
        "a='ü'",
        "optim.lr=choice(1,2)",
        "optim.lr=choice(1,",
        "a=b=c",
    ]
    words += ["a=$x", "resume=ä"]
    assert [literal(word) for word in words] == words
    assert literal("a=ä") == 'a="ä"'
    assert literal("input.select=label in [3, 5]") == 'input.select="label in [3, 5]"'


def test_the_name_of_a_block_stands_for_its_first_key():
    Path("a,b").mkdir()
    assert literal("init=x.pt") == "init.weights=x.pt"
    assert literal("init=x.pt,y.pt") == "init.weights=x.pt,y.pt"
    assert literal("init=a,b") == 'init.weights="a,b"'
    assert literal("init={weights: x.pt}") == "init={weights: x.pt}"


WORDS = {
    "long": "source=" + "x" * 100_000,
    "list": "source=[" + "1," * 20_000 + "1]",
    "deep": "source=" + "[" * 500 + "]" * 500,
    "blocks": "source=" + "{a:" * 500 + "1" + "}" * 500,
    "calls": "source=" + "a(" * 900,
    "dots": "+" + "a." * 5000 + "a=1",
    "references": "source='" + "${" * 3000 + "'",
}


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("command", ["train", "pack", "bench"])
def test_a_word_that_nobody_types_is_refused_at_once(name, command):
    assert is_one_line(paceline(command, WORDS[name]), "C128", 2)


def test_thousands_of_overrides_are_refused_but_not_of_files():
    with pytest.raises(ConfigError, match=r"C128.*5000 words"):
        check_words([f"+a{number}=1" for number in range(5000)])
    check_words([f"x{number}.h5" for number in range(5000)])
    Path("a=[[").touch()
    check_words(["a=[["])


@pytest.mark.parametrize("key", ["metrics", "metrics.x", "watchers", "watchers.x"])
def test_blocks_of_the_users_need_no_plus(key):
    assert literal(f"{key}={{_target_: mine.Thing}}") == f"++{key}={{_target_: mine.Thing}}"
    assert literal(f"{key}=[a,b]") == f"{key}=[a,b]"


@pytest.mark.parametrize(
    "value",
    [
        {"_target_": "mine.Clips", "count": 3, "share": 0.5, "part": None, "on": True},
        {"root": "/a b/c, d", "names": ["true", "1", "x"], "inner": {"text": 'say "so"'}},
        ["wave", "label"],
        {},
    ],
)
def test_a_block_is_read_as_it_was(value):
    word = f"key={block_words(value)}"
    assert OverridesParser.create().parse_override(word).value() == value
