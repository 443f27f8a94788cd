from pathlib import Path

import pytest

from framework.cli.sweep import axes_of
from framework.errors import ConfigError


def test_sweeps_are_hydras_own():
    axes, fixed = axes_of(
        [
            "loader=plain,stream",
            "workers.num=range(0,3)",
            "+x=choice(a,b)",
            "data=glob(hd*)",
            "epochs=3",
            "optim.lr='a,b'",
        ]
    )
    assert axes == {
        "loader": ["plain", "stream"],
        "workers.num": ["0", "1", "2"],
        "+x": ["a", "b"],
        "data": ["hdf5"],
    }
    assert fixed == ["epochs=3", "optim.lr='a,b'"]


def test_a_recipes_own_sweep_is_swept_unless_the_command_line_says_otherwise():
    axes, fixed = axes_of(["recipes=sweep_combinations", "data=hdf5", "loader=plain,stream"])
    assert axes == {
        "parallel": ["none", "dp", "ddp"],
        "precision": ["fp32", "amp"],
        "loader": ["plain", "stream"],
    }
    assert fixed == ["recipes=sweep_combinations", "data=hdf5"]


def test_the_users_own_recipe_is_swept():
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/own.yaml").write_text(
        "# @package _global_\ndefaults:\n  - digits\n"
        "hydra:\n  sweeper:\n    params: {epochs: '1,2'}\n"
    )
    axes, fixed = axes_of(["recipes=own"], "mine")
    assert (axes, fixed) == ({"epochs": ["1", "2"]}, ["recipes=own"])


@pytest.mark.parametrize("word", ["optim.lr=interval(0,1)", "hydra.job.chdir=true,false"])
def test_what_is_no_list_of_values_of_training_is_refused(word):
    with pytest.raises(ConfigError, match="C186"):
        axes_of([word])


def test_a_word_that_hydra_cannot_read_is_one_line():
    with pytest.raises(ConfigError, match="C100"):
        axes_of(["a=[1"])
