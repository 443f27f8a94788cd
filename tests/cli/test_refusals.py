"""A configuration that cannot be is refused in one line, which names the nearest key or choice."""

from importlib.metadata import distributions
from pathlib import Path

import pytest
from hydra.errors import HydraException

from framework.cli import arguments, hydra_app
from framework.cli.explain import explain, unknown_key
from framework.errors import ConfigError
from tests.cli.command import is_one_error_line, paceline, refusal_of, started


@pytest.mark.parametrize(
    ("word", "number", "nearest"),
    [
        *(("dta=hdf5", "C102", "data"), ("data=hdf", "C104", "hdf5")),
        *(("sink=[consle]", "C104", "console"), ("recipes=cifr10", "C104", "cifar10")),
        *(("optim.lrr=3", "C102", "optim.lr"), ("+workers.nun=3", "C102", "workers.num")),
        *(("+epoch=3", "C102", "epochs"), ("+model.widht=9", "C106", "model.width")),
    ],
)
def test_a_typo_is_answered_with_the_nearest_match(word, number, nearest):
    line = refusal_of(word)
    assert line.startswith(f"error[{number}]: ")
    assert f"did you mean '{nearest}'" in line


@pytest.mark.parametrize(
    ("word", "package"),
    [
        ("hydra/sweeper=optuna", "hydra-optuna-sweeper"),
        ("hydra/launcher=submitit_slurm", "hydra-submitit-launcher"),
    ],
)
def test_a_plugin_that_is_missing_is_named_with_its_command(word, package):
    if package in {dist.name for dist in distributions()}:
        pytest.skip(f"{package} is installed")
    done = paceline("train", "-m", word, "seed=1,2")
    assert is_one_error_line(done, "R112")
    assert done.last_line.endswith(f"; pip install {package}")


def test_a_typo_is_answered_before_torch_is_loaded_and_leaves_nothing():
    done = started("train", "optim.lrr=3", PYTHONPROFILEIMPORTTIME="1")
    assert done.code == 2
    assert is_one_error_line(done, "C102")
    assert " torch\n" not in done.err  # in the list of imports
    assert not Path("outputs").exists()


@pytest.mark.parametrize(
    ("words", "number", "text"),
    [
        (["train", "-m", "loader=plain,prefech"], "C104", "did you mean 'prefetch'"),
        (["pack", "input=foldr"], "C104", "did you mean 'folder'"),
        (["train", "+wokers=1"], "C102", "did you mean 'workers'"),
        (["diagnose", "sedonds=3"], "C102", "did you mean 'seconds'"),
        (["tune", "memroy=1G"], "C102", "did you mean 'memory'"),
        (["bench", "repaets=2"], "C102", "did you mean 'repeats'"),
        (["train", "--config-dir", "nowhere"], "C104", "no such folder"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_typo_in_a_command_is_one_line(words, number, text):
    done = paceline(*words)
    assert done.code == 2
    assert is_one_error_line(done, number)
    assert text in done.err
    assert not list(Path().glob("outputs/*"))


@pytest.mark.parametrize(
    ("words", "number", "text"),
    [
        (["data.train=a=b"], "C100", "quote the value: 'data.train=\"a=b\"'"),
        (["data.train=a,b"], "C100", "quote the value: 'data.train=\"a,b\"'"),
        (["data.train=???"], "C103", "data.train: must be given"),
        (["dataset='${nothing}'"], "C104", "'nothing' not found"),
        (["resume="], "C101", "resume = ''"),
        (["recipes=null"], "C103", "data.train"),
        (["optim=null"], "C101", "optim = null: nothing is chosen"),
        (["loader=null"], "C101", "loader = null: nothing is chosen"),
        (["data=null"], "C101", "data = null: nothing is chosen"),
        (["model._target_=os.system"], "C105", "allow_targets=[os]"),
        (["+optim.lr=0.1"], "C102", "leave out the + or ~"),
        (["~optim.lr=3"], "C102", "leave out the + or ~"),
        (["augment=compose", "augment@augment.parts.a=flip"], "C102", "put a + before it"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_wrong_word_is_refused_with_what_to_do(words, number, text):
    line = refusal_of(*words)
    assert line.startswith(f"error[{number}]: ")
    assert text in line


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["precision.dtype=bf16"], "the chosen precision has no such key; choose precision=amp,"),
        (["loader=plain", "loader.depth=3"], "choose loader=prefetch or loader=stream"),
        (["optim.fused=true"], "put a + before it: +optim.fused=VALUE"),
        (["optim=adamw", "optim.amsgrad=true"], "torch.optim.AdamW takes it; put a + before it"),
        (["metrics.x=3"], "metrics has no keys yet; put a + before it: +metrics.x=VALUE"),
        (["objective=loss", "objective.weights.mm=0.5"], "+objective.weights.mm=VALUE"),
        (["objective=loss", "objective.weights={mm: 0.5}"], "++objective.weights={NAME: VALUE}"),
        (["optim={nonsense: 1}"], "put ++ before it: ++optim={NAME: VALUE}"),
        (["batch_size.x=1"], "no such key"),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_a_key_that_is_not_there_is_refused_with_the_way_to_add_it(words, answer):
    line = refusal_of(*words)
    assert line.startswith("error[C102]: ")
    assert answer in line


def test_keys_of_a_command_are_suggested_beside_those_of_training():
    with pytest.raises(ConfigError, match=r"C102\]: sedonds: .*did you mean 'seconds'"):
        hydra_app.composed(["sedonds=3"], arguments.granted([]), own_keys=["seconds"])


def test_a_block_with_the_name_of_a_group_is_answered_with_its_keys():
    line = str(unknown_key("evaluate", ["data=a.h5"], "data", None))
    assert line.endswith("give data.val")


def test_looking_for_the_nearest_key_prints_no_notes_about_recipes(capsys):
    assert "no such key" in str(unknown_key("train", ["optim=rmsprop"], "nonsense", None))
    assert capsys.readouterr().err == ""


def test_choices_and_keys_of_the_users_folder_are_suggested():
    for folder in ("recipes", "model"):
        Path("mine", folder).mkdir(parents=True)
    Path("mine/recipes/own.yaml").touch()
    Path("mine/model/own.yaml").write_text("_target_: torch.nn.Identity\nheight: 3\n")
    assert "did you mean 'own'" in refusal_of("recipes=owm", config_dir="mine")
    assert "own" not in refusal_of("recipes=owm").split("choose ")[1]
    line = refusal_of("model=own", "model.heigth=4", config_dir="mine")
    assert "did you mean 'model.height'" in line


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Could not find 'x'", "C104]: x: no such configuration"),
        ("Could not override 'epoch'. Key", "C102]: epoch: no such key or group"),
        ("Could not override 'a@b'. No match", "put a + before it: +a@b=CHOICE"),
        ("mismatched input '='", "C100]: paceline train: mismatched input '='"),
        ("Could not find 'hydra/launcher/x'", "hydra/launcher = x: no such choice"),
        (
            "Could not find 'recipes/a/b'",
            "recipes = a/b: no such choice; write recipes/a/b.yaml, or add --config-dir",
        ),
    ],
)
def test_an_error_of_hydra_becomes_one_line(text, answer):
    assert answer in str(explain("train", [], HydraException(text), None))


def test_another_error_than_hydras_is_answered_with_its_class():
    assert "TypeError no such thing" in str(explain("train", [], TypeError("no such thing"), None))


@pytest.mark.parametrize(
    ("command", "name", "answer"),
    [
        ("pack", "output/data/im.h5", "output = data/im.h5: no such choice; give a path as "),
        ("pack", "input/photos/", "give a path as input.path=photos/; choose arrays"),
        ("train", "data/im.h5", "give a path as data.train=im.h5; choose dali"),
    ],
)
def test_a_path_in_the_place_of_a_choice_is_answered_with_its_key(command, name, answer):
    error = HydraException(f"Could not find '{name}'")
    assert answer in str(explain(command, [], error, None))
