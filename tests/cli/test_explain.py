from pathlib import Path

import pytest
from hydra.errors import HydraException

from framework.cli.explain import explain, unknown_key


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Could not find 'loader/prefech'", "C104]: loader = prefech: no such choice"),
        ("Could not find 'x'", "C104]: x: no such configuration"),
        ("Could not override 'epoch'. Key", "C102]: epoch: no such key or group"),
        ("Could not override 'a@b'. No match", "put a + before it: +a@b=CHOICE"),
        ("mismatched input '='", "C100]: paceline train: mismatched input '='"),
    ],
)
def test_what_hydra_says_becomes_one_line(text, words):
    assert words in str(explain("train", [], HydraException(text)))


def test_an_error_that_is_not_hydras_names_its_class():
    assert "TypeError no such thing" in str(explain("train", [], TypeError("no such thing")))


def test_the_nearest_key_or_group_is_named():
    assert "did you mean 'optim.lr'" in str(unknown_key("train", [], "optim.lrr"))
    assert "did you mean 'loader'" in str(unknown_key("train", [], "laoder"))


def test_a_key_of_another_choice_names_the_choice():
    assert "choose precision=amp, which has it" in str(unknown_key("train", [], "precision.dtype"))


def test_choices_of_the_users_folder_are_suggested():
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/own.yaml").touch()
    error = HydraException("Could not find 'recipes/owm'")
    assert "did you mean 'own'" in str(explain("train", ["--config-dir", "mine"], error))
