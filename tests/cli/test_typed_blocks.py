"""Blocks that are typed with a ``_target_``, by the real command."""

import pytest

from tests.cli.command import paceline
from tests.cli.test_precedence import job, recipe

MINE = """
defaults:
  - override /data: dataset
data: {train: {_target_: mine.Images, split: train, n: 400}}
optim: {lr: 0.5, scaling: linear, reference_batch_size: 8}
"""


@pytest.fixture(autouse=True)
def mine():
    recipe("mine", MINE)


def typed(*words):
    return job("--config-dir", ".", "recipes=mine", *words)


def test_another_target_drops_the_arguments_of_the_recipe_s():
    config, said = typed("data.train={_target_: mine.make_loader}")
    assert config["data"]["train"] == {"_target_": "mine.make_loader"}
    dropped = "mine.yaml: dropped data.train.split=train, data.train.n=400, because of data.train={"
    assert dropped in said


@pytest.mark.parametrize(
    "words",
    [
        ["data.train={_target_: mine.make_loader, n: 3}"],
        ["data.train={_target_: mine.make_loader}", "data.train.n=3"],
        ["data={train: {_target_: mine.make_loader, n: 3}}"],
    ],
)
def test_what_is_typed_beside_another_target_stays(words):
    config, said = typed(*words)
    assert config["data"]["train"] == {"_target_": "mine.make_loader", "n": 3}
    assert "dropped data.train.split=train, because of" in said


def test_the_same_target_keeps_the_recipe_s_arguments():
    config, said = typed("data.train={_target_: mine.Images, n: 3}")
    assert config["data"]["train"] == {"_target_": "mine.Images", "split": "train", "n": 3}
    assert "dropped" not in said


def test_another_optimizer_drops_the_options_of_the_chosen_one_but_not_those_of_all():
    config, said = typed("optim={_target_: torch.optim.RMSprop}")
    assert config["optim"] == job("optim=null")[0]["optim"] | {"_target_": "torch.optim.RMSprop"}
    assert config["optim"]["scaling"] == "none"
    assert "sgd.yaml: dropped optim.lr=0.1, " in said
    assert "mine.yaml: dropped optim.lr=0.5, optim.scaling=linear, " in said


def test_a_typed_block_without_a_target_is_merged():
    config, said = typed("optim={lr: 0.7}")
    assert (config["optim"]["lr"], config["optim"]["scaling"]) == (0.7, "linear")
    assert "dropped" not in said


def test_another_reader_drops_nothing_of_a_recipe_that_only_names_data():
    assert "dropped" not in typed("data=dataloader")[1]


def test_explain_knows_what_a_typed_target_drops():
    words = ["--config-dir", ".", "recipes=mine", "optim={_target_: torch.optim.RMSprop}"]
    done = paceline("train", *words, "--explain", "optim.scaling")
    assert done.code == 0, done.err
    assert "linear  dropped, because of optim={" in done.out
    assert "none  <- this one counts" in done.out
