import re
from pathlib import Path

import pytest
import yaml

from framework.cli.explain import EVERYDAY, MOST_LINES, help_text
from framework.config.targets import CONF
from framework.system.run_dir import flat
from tests.cli.command import paceline


def chosen(command, *words, config_dir=None):
    """Return what the page says of the choices that were typed, behind the page without them."""
    text = help_text(command, config_dir, words)
    assert text.startswith(help_text(command, config_dir))
    return text.removeprefix(help_text(command, config_dir)).strip("\n")


def test_every_choice_and_key_has_a_line():
    done = paceline("train", "--help", "all")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    explained = {words[0] for words in lines if len(words) > 2}
    assert {"hdf5", "dali", "plain", "none", "ddp", "amp", "cifar10", "batch_size:"} <= explained


def test_the_first_page_is_short_and_names_every_choice_and_key():
    page = help_text("train", None)
    assert len(page.splitlines()) <= MOST_LINES
    names = set(re.findall(r"[\w.]+", page))
    whole = yaml.safe_load((CONF / "train.yaml").read_text())
    assert {key for key in flat(whole) if not key.startswith(("defaults", "hydra"))} <= names
    groups = [group for entry in whole["defaults"][1:] for group in entry]
    assert {path.stem for group in groups for path in CONF.glob(f"{group}/*.yaml")} <= names


def test_a_short_page_explains_only_keys_that_are_there():
    page = help_text("train", None)
    assert [key for key in EVERYDAY if f"\n  {key}: " not in page] == []


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("pack", "input=list"), ["    header: true          # whether the first line names"]),
        (("train", "+model=resnet18"), ["  model:", "    in_channels:", "    stem: large"]),
        (("train", "optim=adam"), ["    betas: [0.9, 0.999]"]),
        (("train", "recipes=cifar10"), ["  epochs: 5"]),
    ],
    ids=lambda value: value[-1] if isinstance(value, tuple) else "",
)
def test_the_keys_of_a_choice_are_shown_with_their_comments(words, lines):
    text = chosen(*words)
    assert not re.search(r"^ *_target_", text, re.MULTILINE)
    assert all(f"\n{line}" in text for line in lines)


def test_several_choices_are_each_shown_once():
    text = chosen("train", "sink=[console,jsonl]", "optim=adam,sgd", "optim=adam")
    titles = ("sink=console:", "sink=jsonl:", "optim=adam:", "optim=sgd:")
    assert [text.count(title) for title in titles] == [1] * 4


def test_an_unknown_choice_is_named_with_the_nearest():
    expected = "loader=prefetsh: no such choice (did you mean 'prefetch'?)"
    assert chosen("train", "loader=prefetsh") == expected


def test_a_choice_of_the_users_is_shown_with_nothing_a_terminal_obeys(tmp_path):
    Path("model").mkdir()
    Path("model/mine.yaml").write_text("# mine\n_target_: my.Net\nwidth: 3 # \x1b[2J\n")
    expected = "model=mine: mine\n  model:\n    width: 3 # \\x1b[2J"
    assert chosen("train", "model=mine", config_dir=tmp_path) == expected


def test_words_that_choose_nothing_add_nothing():
    assert chosen("train", "epochs=3", "model.width=2", "debug=null") == ""
