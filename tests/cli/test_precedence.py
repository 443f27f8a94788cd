"""Which of several settings counts: files, recipes, choices, typed blocks and words."""

from pathlib import Path

import pytest
import yaml
from hydra import compose
from omegaconf import OmegaConf

from framework.cli import precedence
from framework.cli.hydra_session import hydra_session
from tests.cli.command import config_of, is_one_error_line, paceline
from tests.conftest import make_records, write_store

SHORT = ["max_steps=2", "limit=64", "batch_size=16", "sink=[jsonl]", "clock=false"]
EXAMPLE = str(Path(__file__).parents[2] / "examples" / "own_model_and_data")


def recipe(name, text):
    Path("recipes").mkdir(exist_ok=True)
    Path(f"recipes/{name}.yaml").write_text(f"# @package _global_\n{text}")


def composition(*words, config_dir="."):
    """Return the composed configuration and its notes."""
    with hydra_session("train", config_dir):
        config = OmegaConf.to_container(compose("train", list(words)))
    return config, "\n".join(precedence.last().notes)


def explained(key, *words, config_dir="."):
    done = paceline("train", "--config-dir", config_dir, *words, "--explain", key)
    assert done.code == 0, done.err
    return done.out


def test_a_typed_model_replaces_the_one_of_a_recipe():
    config, notes = composition("recipes=sines", "model=digits", config_dir=EXAMPLE)
    assert config["model"]["_target_"] == "framework.model.digits_net.DigitsCNN"
    assert config["model"].get("width") != 256
    dropped = "dropped model._target_=sines.Net, model.width=256, because of model=digits"
    assert f"sines.yaml: {dropped}" in notes


@pytest.mark.parametrize(
    ("words", "rate"), [([], 0.5), (["optim.lr=0.7"], 0.7), (["optim=adam", "optim.lr=0.7"], 0.7)]
)
def test_a_recipe_sets_its_own_choice_and_words_count_more(words, rate):
    recipe("mine", "defaults:\n  - digits\n  - override /optim: adam\noptim: {lr: 0.5}\n")
    assert composition("recipes=mine", *words)[0]["optim"]["lr"] == rate


def test_another_reader_keeps_the_data_that_a_recipe_names():
    recipe("mine", "data: {train: a.h5, val: b.h5, stage: device}\n")
    config, notes = composition("recipes=mine", "data=lmdb")
    data = config["data"]
    assert (data["train"], data["val"], data["stage"]) == ("a.h5", "b.h5", "none")
    assert "dropped data.stage=device, because of data=lmdb" in notes


def test_each_job_of_a_sweep_has_its_choices_own_defaults():
    done = paceline("train", "-m", "optim=adamw,adam", *SHORT)
    assert done.code == 0, done.err
    assert done.err.count("dropped optim.lr=0.02, because of optim=") == 2
    for path in Path("outputs").glob("*/*-sweep/*/resolved.json"):
        assert yaml.safe_load(path.read_text())["optim"]["lr"] == 1e-3


@pytest.mark.parametrize("name", ["sweep_search", "sweep_slurm"])
def test_a_single_run_drops_the_options_of_a_sweeper_and_a_launcher(name):
    assert config_of(f"recipes={name}", "hydra.mode=RUN")["dataset"] == "outputs/data/digits"


def test_a_typed_sweeper_keeps_the_options_that_a_recipe_has_for_it():
    words = ["recipes=sweep_loader", "hydra/sweeper=basic"]
    with hydra_session("train"):
        config = compose("train", words, return_hydra_config=True)
    assert config.hydra.sweeper.params["workers.num"] == "0,2"


def test_typed_training_data_is_trained_on_alone():
    write_store("mine.h5", make_records(40))
    done = paceline("train", "data.train=mine.h5", *SHORT)
    assert done.code == 0, done.err
    assert "no recipe is used, because data.train is typed" in done.err
    assert "no validation, because data.train is typed without data.val" in done.err
    assert "val loss" not in done.out
    assert not Path("outputs/data").exists()  # nothing was packed


@pytest.mark.parametrize("word", ["dataset=packed", "source=somewhere", "data.val=val.h5"])
def test_the_default_recipe_is_left_out_if_data_is_named(word):
    key = word.split("=")[0]
    assert f"no recipe is used, because {key} is typed" in composition(word)[1]


@pytest.mark.parametrize(
    ("words", "later", "whole"),
    [
        (["optim=adam"], ["data.train=a.h5"], ["recipes=digits", "optim=adam"]),
        (["recipes=photos"], ["data.train=a.h5"], ["recipes=photos"]),
        (["dataset=d"], ["data.train=a.h5"], ["dataset=d"]),
        (["optim=adam"], ["loader=plain"], ["optim=adam"]),
    ],
)
def test_words_of_the_default_recipe_name_it_beside_words_that_name_data(words, later, whole):
    assert precedence.with_named_recipe(words, later) == whole


def test_null_chooses_no_sinks():
    assert not config_of("sink=null").get("sink")


def test_an_optimizer_of_the_users_replaces_the_chosen_one():
    words = ["optim=null", "+optim._target_=torch.optim.RMSprop", "+optim.lr=0.001"]
    optim = config_of(*words, "optim.scaling=linear", "optim.reference_batch_size=8")["optim"]
    assert (optim["_target_"], optim["lr"]) == ("torch.optim.RMSprop", 0.001)


def test_a_choice_with_a_place_of_its_own_is_removed_by_null():
    words = ["transform@data.val_transform=null", "data.val=null", "model=null", "debug=null"]
    removed = ["~transform@data.val_transform", "data.val=null", "~model"]
    assert precedence.without_null(words, ("transform", "model", "debug").__contains__) == removed


def test_what_is_printed_is_what_runs():
    text = "defaults:\n  - digits\n  - override /optim: adam\n  - override /loader: plain\n"
    recipe("mine", f"{text}optim: {{lr: 0.005}}\n")
    words = ["--config-dir", ".", "recipes=mine", "schedule=cosine", "order=block", *SHORT]
    printed = paceline("train", *words, "--cfg", "job").out
    done = paceline("train", *words, "hydra.run.dir=run")
    assert done.code == 0, done.err
    assert yaml.safe_load(Path("run/config.yaml").read_text()) == yaml.safe_load(printed)


MINE = """
defaults:
  - override /data: dataset
data: {train: {_target_: mine.Images, split: train, n: 400}}
optim: {lr: 0.5, scaling: linear, reference_batch_size: 8}
"""


@pytest.fixture
def blocks():
    """Write a recipe with blocks, and return a function that composes it with more words."""
    recipe("mine", MINE)
    return lambda *words: composition("recipes=mine", *words)


def test_another_target_drops_the_arguments_of_the_recipe(blocks):
    config, notes = blocks("data.train={_target_: mine.make_loader}")
    assert config["data"]["train"] == {"_target_": "mine.make_loader"}
    dropped = "mine.yaml: dropped data.train.split=train, data.train.n=400, because of data.train={"
    assert dropped in notes


@pytest.mark.parametrize(
    "words",
    [
        ["data.train={_target_: mine.make_loader, n: 3}"],
        ["data.train={_target_: mine.make_loader}", "data.train.n=3"],
        ["data={train: {_target_: mine.make_loader, n: 3}}"],
    ],
    ids=["in the block", "behind the block", "in an outer block"],
)
def test_arguments_typed_with_another_target_stay(blocks, words):
    config, notes = blocks(*words)
    assert config["data"]["train"] == {"_target_": "mine.make_loader", "n": 3}
    assert "dropped data.train.split=train, because of" in notes


def test_the_same_target_keeps_the_arguments_of_the_recipe(blocks):
    config, notes = blocks("data.train={_target_: mine.Images, n: 3}")
    assert config["data"]["train"] == {"_target_": "mine.Images", "split": "train", "n": 3}
    assert "dropped" not in notes


def test_sets_by_name_replace_the_one_of_a_recipe(blocks):
    config, notes = blocks("data.train={a: {_target_: mine.A}, b: {_target_: mine.B}}")
    assert config["data"]["train"] == {"a": {"_target_": "mine.A"}, "b": {"_target_": "mine.B"}}
    assert "dropped data.train._target_=mine.Images" in notes


def test_another_optimizer_keeps_the_options_that_every_optimizer_has(blocks):
    config, notes = blocks("optim={_target_: torch.optim.RMSprop}")
    every = composition("optim=null")[0]["optim"]
    assert config["optim"] == every | {"_target_": "torch.optim.RMSprop"}
    assert config["optim"]["scaling"] == "none"
    assert "sgd.yaml: dropped optim.lr=0.1, " in notes
    assert "mine.yaml: dropped optim.lr=0.5, optim.scaling=linear, " in notes


def test_a_typed_block_without_a_target_is_merged(blocks):
    config, notes = blocks("optim={lr: 0.7}")
    assert (config["optim"]["lr"], config["optim"]["scaling"]) == (0.7, "linear")
    assert "dropped" not in notes


def test_another_reader_drops_nothing_of_a_recipe_that_only_names_data(blocks):
    assert "dropped" not in blocks("data=dataloader")[1]


def test_the_file_that_counts_and_the_dropped_one_are_explained():
    first, chosen, dropped = explained("optim.lr", "recipes=cifar10", "optim=adamw").splitlines()
    assert first == "optim.lr = 0.001"
    assert "conf/optim/adamw.yaml" in chosen
    assert chosen.endswith("0.001  <- this one counts")
    assert "recipes/cifar10.yaml" in dropped
    assert dropped.endswith("0.2  dropped, because of optim=adamw")


def test_a_typed_block_is_explained():
    recipe("mine", MINE)
    out = explained("optim.scaling", "recipes=mine", "optim={_target_: torch.optim.RMSprop}")
    assert "recipes/mine.yaml" in out
    assert "linear  dropped, because of optim={" in out
    assert "none  <- this one counts" in out


def test_every_key_below_a_block_is_explained_and_references_have_values():
    out = explained("data", "data.stage=none")
    assert any("data.stage=none" in line and line.endswith("counts") for line in out.splitlines())
    path = "outputs/data/digits/train.h5"
    assert f"data.train = ${{dataset}}/train.h5  (that is {path})" in out


def test_dropped_validation_is_explained():
    out = explained("data.val", "data.train=mine.h5")
    assert out.startswith("data.val = null")
    assert "data.train is typed without data.val" in out


@pytest.mark.parametrize(
    ("words", "number"), [(["--explain", "optm.lr"], "C102"), (["--explain"], "C124")]
)
def test_an_unknown_key_is_not_explained(words, number):
    assert is_one_error_line(paceline("train", *words), number)
