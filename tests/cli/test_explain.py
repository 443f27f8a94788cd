from pathlib import Path

import pytest
from hydra.errors import HydraException

from framework.cli.explain import explain, unknown_key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Could not find 'loader/prefech'", "C104]: loader = prefech: no such choice"),
        ("Could not load 'sink/consle'", "C104]: sink = consle: no such choice (did you mean"),
        ("Could not find 'x'", "C104]: x: no such configuration"),
        ("Could not override 'epoch'. Key", "C102]: epoch: no such key or group"),
        ("Could not override 'a@b'. No match", "put a + before it: +a@b=CHOICE"),
        ("mismatched input '='", "C100]: paceline train: mismatched input '='"),
    ],
)
def test_what_hydra_says_becomes_one_line(text, words):
    assert words in str(explain("train", [], HydraException(text), None))


def test_the_nearest_key_or_group_is_named():
    assert "did you mean 'optim.lr'" in str(unknown_key("train", [], "optim.lrr", None))
    assert "did you mean 'loader'" in str(unknown_key("train", [], "laoder", None))


def test_a_block_with_the_name_of_a_group_names_its_keys():
    text = str(unknown_key("evaluate", ["data=a.h5"], "data", None))
    assert text.endswith("give data.val")
    assert "leave out the + or ~" not in text


@pytest.mark.parametrize(
    ("word", "fix"),
    [
        ("objective.weights={mm: 0.5}", "put ++ before it: ++objective.weights={NAME: VALUE}"),
        ("objective.weights.mm=0.5", "put a + before it: +objective.weights.mm=VALUE"),
        ("optim={nonsense: 1}", "put ++ before it: ++optim={NAME: VALUE}"),
    ],
)
def test_a_new_key_of_a_block_takes_a_plus(word, fix):
    key = word.split("=")[0]
    assert str(unknown_key("train", ["objective=loss", word], key, None)).endswith(fix)


def test_a_key_of_another_choice_names_the_choice():
    assert "choose precision=amp, which has it" in str(
        unknown_key("train", [], "precision.dtype", None)
    )


def test_choices_of_the_users_folder_are_suggested():
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/own.yaml").touch()
    error = HydraException("Could not find 'recipes/owm'")
    assert "did you mean 'own'" in str(explain("train", [], error, "mine"))
    assert "own" not in str(explain("train", [], error, None)).split("choose ")[1]


@pytest.mark.parametrize(
    ("command", "name", "words"),
    [
        (
            "pack",
            "output/im.h5",
            "output = im.h5: no such choice; give a path as output.path=im.h5",
        ),
        ("pack", "output/data/im.h5", "output = data/im.h5: no such choice; give a path as "),
        ("pack", "input/photos/", "give a path as input.path=photos/; choose arrays"),
        ("train", "data/im.h5", "give a path as data.train=im.h5; choose dali"),
        ("train", "recipes/tuned/here", "recipes = tuned/here: no such choice; add --config-dir"),
        ("train", "hydra/launcher/x", "hydra/launcher = x: no such choice"),
    ],
)
def test_a_path_that_is_given_as_a_choice_is_answered(command, name, words):
    error = HydraException(f"Could not find '{name}'")
    assert words in str(explain(command, [], error, None))
