"""The options of commands without groups of choices."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from framework import errors, main
from framework.cli.outcome import RunOutcome, option, read_options, rules_of, run_options


@dataclass(frozen=True)
class Given:
    """Do something with paths."""

    paths: list[str] = option(about="what it is about", means="a list of paths")
    to: str = option("plain", "the format", choices=("plain", "rich"))
    count: int | None = option(None, "how many", least=1, number=340)
    share: float = option(0.5, "how much", least=0, most=1)
    val: str | dict | None = option(None, "a store, or several", key="data.val")
    tags: list[str] = option([], "words")
    json: bool = option(False, "or --json")


def read(*words):
    return read_options("do", words, Given, "paths")


def test_words_set_options_and_plain_words_are_what_the_command_is_about():
    Path("a=b.h5").touch()
    given = read("x y.h5", "a=b.h5", "to='rich'", "count=3", "data.val={a: x.h5}", "--json")
    expected = Given(["x y.h5", "a=b.h5"], "rich", 3, 0.5, {"a": "x.h5"}, [], True)
    assert given == expected


@pytest.mark.parametrize("text", ["1e3", "a #b", "[x].h5", "${oc.env:HOME}", "*x", "a: b"])
def test_a_text_is_taken_literally(text):
    @dataclass
    class Text:
        path: str = option()

    assert read_options("do", [f"path={text}"], Text).path == text


def test_null_and_lists_are_values():
    given = read("paths=[a, 'b c']", "count=null", "tags=[1.x]", "share=1")
    assert (given.paths, given.count, given.tags, given.share) == (["a", "b c"], None, ["1.x"], 1.0)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["x", "to=rihc"], r"C101\]: to = rihc: must be plain or rich \(did you mean 'rich'\?\)"),
        (["x", "count=0"], r"C340\]: count = 0: must be a whole number of at least 1, or null"),
        (["x", "share=1,2"], r"C101\]: share = 1,2: must be a number from 0 to 1"),
        (["paths=x"], r"C101\]: paths = x: must be a list of paths"),
        (["paths=[x"], r"C101\]: paths = \[x: must be a list of paths"),
        (["tags=[1]", "x"], r"C101\]: tags = \[1\]: must be a list of texts"),
        (["x", "tagz=[a]"], r"C102\]: tagz: no such key \(did you mean 'tags'\?\); see 'paceline "),
        (["to=rich"], r"C103\]: paths: must be given; add paths=\.\.\."),
        (["x", "paths=[y]"], r"C100\]: x: stands beside paths="),
        (["x", "--jsn"], r"C124\]: --jsn: no such option \(did you mean '--json'\?\)"),
        (["x", "-m", "to=plain,rich"], r"C124\]: -m: no such option"),
    ],
)
def test_a_word_that_sets_no_option_is_refused(words, line):
    with pytest.raises(errors.ConfigError, match=line):
        read(*words)


def test_one_plain_word_stands_for_one_text():
    @dataclass
    class Store:
        store: str = option()

    assert read_options("do", ["a.h5"], Store, "store").store == "a.h5"
    with pytest.raises(errors.ConfigError, match=r"C100\]: a b: names more than one store"):
        read_options("do", ["a", "b"], Store, "store")
    with pytest.raises(errors.ConfigError, match=r"C100\]: a: is neither an option nor key=value"):
        read_options("do", ["a"], Store)


def test_the_help_lists_every_key_with_its_default(capsys):
    assert run_options("do", ["--help"], Given, lambda *_: RunOutcome(1, "ran"), "paths") == 0
    usage, _, about, _, *lines = capsys.readouterr().out.splitlines()
    assert usage == "usage: paceline do PATH ... [key=value] ..."
    assert about == "Do something with paths."
    words = [line.split() for line in lines[1:]]
    assert [word[0].rstrip(":") for word in words] == list(rules_of(Given))
    assert [word[1] for word in words] == ["???", "plain", "null", "0.5", "null", "[]", "false"]


def test_keys_are_completed(monkeypatch, capsys):
    monkeypatch.setenv("COMP_LINE", "paceline inspect x.h5 num")
    assert main.run(["-sc", "query=bash"]) == 0
    assert capsys.readouterr().out == "num_images=\n"


def test_a_directory_is_there_only_for_a_command_that_writes(capsys):
    def write(_, run_dir):
        run_dir.mkdir(parents=True)
        (run_dir / "page.html").touch()
        return RunOutcome(0, "written")

    def fail(_, run_dir):
        raise errors.ConfigError(101, "x", "is wrong", "correct it")

    assert run_options("do", ["x"], Given, fail, "paths") == 2
    assert capsys.readouterr().err == "error[C101]: x: is wrong; correct it\n"
    assert not Path("outputs").exists()
    assert run_options("do", ["x"], Given, write, "paths") == 0
    assert len(list(Path("outputs/do").glob("*/*/page.html"))) == 1


def test_the_traceback_of_an_error_in_other_code_is_written(capsys):
    def fail(*_):
        raise ZeroDivisionError

    assert run_options("do", ["x"], Given, fail, "paths") == 9
    (log,) = Path("outputs/do").glob("*/*/debug.log")
    assert str(log) in capsys.readouterr().err
