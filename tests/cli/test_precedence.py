"""Which of several settings counts, by the real command."""

import random
from pathlib import Path

import pytest
import yaml
from hydra import compose

from framework.cli.allowed import granted
from framework.cli.compose_config import composed
from framework.cli.hydra_session import hydra_session
from framework.cli.precedence import with_recipe_said, without_null
from tests.cli.command import is_one_error_line, paceline
from tests.conftest import make_records, write_store

SHORT = ["max_steps=2", "limit=64", "batch_size=16", "sink=[jsonl]", "clock=false"]
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_model_and_data")


def job(*words):
    """Return the configuration that ``--cfg job`` prints, and what is written to stderr."""
    done = paceline("train", *words, "--cfg", "job")
    assert done.code == 0, done.err
    return yaml.safe_load(done.out), done.err


def recipe(name, text):
    Path("recipes").mkdir(exist_ok=True)
    Path(f"recipes/{name}.yaml").write_text(f"# @package _global_\n{text}")


def test_a_typed_model_replaces_the_one_a_recipe_brings():
    config, said = job("--config-dir", EXAMPLE, "recipes=sines", "model=digits")
    assert config["model"]["_target_"] == "paceline_examples.digits_net.DigitsCNN"
    assert "width" not in config["model"] or config["model"]["width"] != 256
    assert (
        "sines.yaml: dropped model._target_=sines.Net, model.width=256, because of model=digits"
        in said
    )


def test_a_typed_optimizer_replaces_the_one_a_recipe_brings():
    recipe("own", "defaults: [digits]\noptim: {_target_: torch.optim.RMSprop, lr: 0.5}\n")
    config, said = job("--config-dir", ".", "recipes=own", "optim=adam")
    assert (config["optim"]["_target_"], config["optim"]["lr"]) == ("torch.optim.Adam", 1e-3)
    assert (
        "own.yaml: dropped optim._target_=torch.optim.RMSprop, optim.lr=0.5, because of optim=adam"
        in said
    )


def test_what_a_recipe_says_of_its_own_choice_counts_and_what_is_typed_counts_more():
    recipe("mine", "defaults:\n  - digits\n  - override /optim: adam\noptim: {lr: 0.5}\n")
    assert job("--config-dir", ".", "recipes=mine")[0]["optim"]["lr"] == 0.5
    assert job("--config-dir", ".", "recipes=mine", "optim.lr=0.7")[0]["optim"]["lr"] == 0.7
    assert (
        job("--config-dir", ".", "recipes=mine", "optim=adam", "optim.lr=0.7")[0]["optim"]["lr"]
        == 0.7
    )


def test_another_reader_keeps_the_data_that_a_recipe_names():
    recipe("mine", "data: {train: a.h5, val: b.h5, stage: device}\n")
    config, said = job("--config-dir", ".", "recipes=mine", "data=lmdb")
    assert (config["data"]["train"], config["data"]["val"], config["data"]["stage"]) == (
        "a.h5",
        "b.h5",
        "none",
    )
    assert "dropped data.stage=device, because of data=lmdb" in said


def test_each_job_of_a_sweep_has_its_choices_own_defaults():
    done = paceline("train", "-m", "optim=adamw,adam", *SHORT)
    assert done.code == 0, done.err
    assert done.err.count("dropped optim.lr=0.02, because of optim=") == 2
    for path in Path("outputs").glob("*/*-sweep/*/resolved.json"):
        assert yaml.safe_load(path.read_text())["optim"]["lr"] == 1e-3


def test_typed_training_data_is_trained_on_alone():
    write_store("mine.h5", make_records(40))
    done = paceline(
        "train", "data.train=mine.h5", "model.in_channels=3", "model.num_classes=3", *SHORT
    )
    assert done.code == 0, done.err
    assert "no recipe is used, because data.train is typed" in done.err
    assert "no validation, because data.train is typed without data.val" in done.err
    assert "val loss" not in done.out
    assert not Path("outputs/data").exists()  # nothing was packed


@pytest.mark.parametrize("word", ["dataset=packed", "source=somewhere", "data.val=val.h5"])
def test_the_default_recipe_needs_that_nothing_about_data_is_typed(word):
    done = paceline("train", word, *SHORT)
    assert f"no recipe is used, because {word.split('=')[0]} is typed" in done.err
    assert done.code in (2, 3)


def test_without_a_recipe_somebody_must_say_which_data():
    done = paceline("train", "recipes=null", *SHORT)
    assert is_one_error_line(done, "C103")
    assert "data.train" in done.last_line


@pytest.mark.parametrize("group", ["optim", "model", "schedule", "loader", "data"])
def test_a_group_of_which_nothing_is_chosen_is_one_line(group):
    done = paceline("train", f"{group}=null", *SHORT)
    assert is_one_error_line(done, "C101")
    assert f"{group} = null: nothing is chosen" in done.last_line


def test_no_sinks_may_be_chosen_by_null():
    assert job("sink=null")[0].get("sink") is None


CHOICES = {
    "recipes": ["digits", "speedup", "mine"],
    "optim": ["sgd", "adam", "adamw"],
    "model": ["digits", "speedup"],
    "schedule": ["constant", "cosine", "one_cycle"],
    "data": ["hdf5", "lmdb"],
    "loader": ["plain", "prefetch", "stream"],
    "augment": ["normalize", "none"],
    "order": ["full", "block"],
    "optim.lr": ["0.01", "0.001"],
    "seed": ["3"],
    "debug": ["tiny"],
    "optim.weight_decay": ["0.1"],
}


@pytest.mark.parametrize("seed", range(8))
def test_what_is_printed_is_what_runs(seed, tmp_path):
    draw = random.Random(seed)
    recipe(
        "mine",
        "defaults:\n  - digits\n  - override /optim: adam\n  - override /loader: plain\n"
        "optim: {lr: 0.005}\n",
    )
    keys = draw.sample(sorted(CHOICES), draw.randint(1, 6))
    words = [f"{key}={draw.choice(CHOICES[key])}" for key in keys]
    printed, _ = job("--config-dir", ".", *words, *SHORT)
    done = paceline("train", "--config-dir", ".", *words, *SHORT, "hydra.run.dir=run")
    ran = (
        yaml.safe_load(Path("run/config.yaml").read_text())
        if Path("run/config.yaml").exists()
        else None
    )
    assert done.code in (0, 2), done.err
    assert ran == printed if done.code == 0 else ran in (printed, None)


def test_words_that_use_the_default_recipe_say_so_beside_words_that_name_data():
    assert with_recipe_said(["optim=adam"], ["data.train=a.h5"]) == ["recipes=digits", "optim=adam"]
    assert with_recipe_said(["recipes=chips"], ["data.train=a.h5"]) == ["recipes=chips"]
    assert with_recipe_said(["dataset=d"], ["data.train=a.h5"]) == ["dataset=d"]
    assert with_recipe_said(["optim=adam"], ["loader=plain"]) == ["optim=adam"]


def test_a_choice_with_a_place_of_its_own_is_removed_by_null():
    words = ["transform@data.val_transform=null", "data.val=null", "model=null"]
    groups = ("transform", "model")
    removed = ["~transform@data.val_transform", "data.val=null", "~model"]
    assert without_null(words, groups.__contains__) == removed


@pytest.mark.parametrize("name", ["objective/classify.yaml", "recipes/digits.yaml"])
def test_a_file_of_the_user_that_ours_would_hide_is_refused(name):
    Path(name).parent.mkdir()
    Path(name).write_text("seed: 5\n")
    done = paceline("train", "--config-dir", ".", *SHORT)
    assert is_one_error_line(done, "C206")
    assert name in done.last_line


@pytest.mark.parametrize("name", ["sweep_search", "sweep_slurm"])
def test_a_single_run_drops_the_options_of_a_sweeper_and_a_launcher_that_are_not_chosen(name):
    config = composed([f"recipes={name}", "hydra.mode=RUN"], granted([]))[0]
    assert config["dataset"] == "outputs/data/digits"


def test_a_typed_sweeper_or_launcher_keeps_the_options_that_a_recipe_has_for_it():
    words = ["recipes=sweep_loader", "hydra/sweeper=basic"]
    with hydra_session("train"):
        config = compose("train", words, return_hydra_config=True)
    assert config.hydra.sweeper.params["workers.num"] == "0,2"
