from pathlib import Path

import pytest

from framework.cli.help import help_text
from tests.cli.command import paceline


def chosen(command, *words, config_dir=None):
    """Return what the help says of the choices that were typed.

    It is all that the help does not say without them.
    """
    text = help_text(command, config_dir, words)
    assert text.startswith(help_text(command, config_dir))
    return text.removeprefix(help_text(command, config_dir)).strip("\n")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("pack", "input=list"),
            "    header: true          # whether the first line names the columns;",
        ),
        (("train", "model=resnet18"), "    stem: large"),
        (("train", "optim=adam"), "    betas: [0.9, 0.999]"),
    ],
)
def test_the_keys_of_a_choice_are_shown_with_their_comments(words, line):
    done = paceline(*words, "--help")
    assert done.code == 0, done.err
    assert any(shown.startswith(line) for shown in done.out.splitlines())


def test_keys_stand_below_their_groups_name_without_the_class_they_are_for():
    assert "_target_" not in chosen("train", "model=resnet18")
    assert "\n  model:\n    in_channels:" in chosen("train", "+model=resnet18")


def test_a_recipe_is_shown_as_it_is():
    assert "\n  epochs: 5\n" in chosen("train", "recipes=cifar10")


def test_a_choice_that_is_not_there_is_named_with_the_nearest():
    assert (
        chosen("train", "loader=prefetsh")
        == "loader=prefetsh: no such choice (did you mean 'prefetch'?)"
    )


def test_a_choice_of_the_users_is_shown_with_nothing_a_terminal_obeys(tmp_path):
    Path("model").mkdir()
    Path("model/mine.yaml").write_text("# mine\n_target_: my.Net\nwidth: 3 # \x1b[2J\n")
    assert (
        chosen("train", "model=mine", config_dir=tmp_path)
        == "model=mine: mine\n  model:\n    width: 3 # \\x1b[2J"
    )
