"""``--explain KEY``, by the real command."""

import pytest

from tests.cli.command import is_one_error_line, paceline


def explained(key, *words):
    done = paceline("train", *words, "--explain", key)
    assert done.code == 0, done.err
    return done.out


def test_the_file_that_counts_and_the_one_that_was_dropped():
    said = explained("optim.lr", "recipes=cifar10", "optim=adamw")
    first, chosen, recipe = said.splitlines()
    assert first == "optim.lr = 0.001"
    assert "conf/optim/adamw.yaml" in chosen
    assert chosen.endswith("0.001  <- this one counts")
    assert "recipes/cifar10.yaml" in recipe
    assert recipe.endswith("0.2  dropped, because of optim=adamw")


def test_a_typed_word_counts_more_than_files():
    last = explained("optim.lr", "optim.lr=0.5").splitlines()[-1]
    assert "optim.lr=0.5" in last
    assert last.endswith("<- this one counts")


def test_every_key_below_a_block_is_explained():
    said = explained("optim")
    assert "optim._target_ = torch.optim.SGD" in said
    assert "optim.momentum = 0.9" in said


def test_validation_that_a_rule_turned_off_is_explained():
    said = explained("data.val", "data.train=mine.h5")
    assert said.startswith("data.val = null")
    assert "data.train is typed without data.val" in said


@pytest.mark.parametrize(
    ("words", "number"), [(["--explain", "optm.lr"], "C102"), (["--explain"], "C124")]
)
def test_a_key_that_is_not_there_is_one_line(words, number):
    assert is_one_error_line(paceline("train", *words), number)
