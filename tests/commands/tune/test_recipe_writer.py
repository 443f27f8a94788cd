"""Recipes made of typed words; whole searches that leave one are in ``test_tune``."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.commands.tune.candidate import Candidate
from framework.commands.tune.recipe_writer import (
    check_name,
    recipe_text,
    typed,
    write_recipe,
)
from framework.errors import ConfigError

NOBODY = Grant(frozenset(), "")
DEEP = Candidate(4, "process", "prefetch", 8)


def test_the_recipe_holds_the_winner_and_what_was_typed():
    text = recipe_text(typed(["recipes=cifar10", "epochs=3"], None), DEEP, ["tuned today"])
    recipe = OmegaConf.create(text)
    assert text.startswith("# @package _global_\n# tuned today\ndefaults:\n")
    assert recipe.defaults == ["/recipes/cifar10", "_self_", {"override /loader": "prefetch"}]
    assert recipe.workers == {"num": 4, "kind": "process", "start_method": None}
    assert (recipe.loader.depth, recipe.epochs) == (8, 3)


OTHER = recipe_text(typed(["epochs=4"], None), None, [])
BROKEN = OTHER.replace("_self_", "/recipes/none")


@pytest.mark.parametrize(
    ("text", "number"), [(OTHER, "C198"), (BROKEN, r"C104.*none: no such choice")]
)
def test_an_older_recipe_stays_if_the_new_one_cannot_be_written(text, number):
    path = Path("recipes/tuned/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("# by hand\n")
    wanted, _ = composed(["epochs=3"], NOBODY)
    with pytest.raises(ConfigError, match=number):
        write_recipe(path, text, wanted, ["recipes=tuned/mine"], NOBODY, ".")
    assert path.read_text() == "# by hand\n"
    assert [other.name for other in path.parent.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize("name", ["", ".", "../x", "a/b", "a\nb", "ü", "x" * 101])
def test_a_name_that_leads_out_is_refused(name):
    with pytest.raises(ConfigError, match="C197") as caught:
        check_name(name, ["digits"])
    assert "\n" not in str(caught.value)


def test_a_recipe_is_not_made_of_itself():
    check_name("mine", ["digits"])
    with pytest.raises(ConfigError, match=r"C197.*itself"):
        check_name("mine", ["tuned/mine"])
