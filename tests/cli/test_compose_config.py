from pathlib import Path

import pytest

from framework.cli.allowed import Grant
from framework.cli.compose_config import composed
from framework.errors import ConfigError

NOTHING = Grant(False, "")


def test_two_configurations_are_composed_in_one_process():
    first, _ = composed(["epochs=3"], NOTHING)
    second, allowed = composed(["optim=adam"], NOTHING)
    assert (first["epochs"], second["optim"]["_target_"]) == (3, "torch.optim.Adam")
    assert second["epochs"] != 3
    assert allowed == ()


def test_recipes_are_found_in_the_users_folder():
    Path("mine/recipes").mkdir(parents=True)
    Path("mine/recipes/own.yaml").write_text(
        "# @package _global_\ndefaults: [digits]\nepochs: 77\n"
    )
    assert composed(["recipes=own"], NOTHING, "mine")[0]["epochs"] == 77


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("optim=adm", "C104"),
        ("epochs=0", "C101"),
        ("model._target_=os.system", "C105"),
        ("recipes=null", "C103"),
    ],
)
def test_what_training_would_refuse_is_refused(word, number):
    with pytest.raises(ConfigError, match=number):
        composed([word], NOTHING)
