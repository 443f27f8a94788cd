"""Files of the user's own in the present folder: choices, ``vars`` and ``tags``."""

import os
import pickle
from pathlib import Path

import pytest
from hydra.types import RunMode

from framework.cli.hydra_session import hydra_session
from framework.system.run_dir import read_json
from tests.cli.command import config_of, paceline, refusal_of


def write(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


@pytest.fixture
def project():
    """Write a model and a recipe that chooses it."""
    layers = "[{_target_: torch.nn.Flatten}, {_target_: torch.nn.Linear, in_features: 64}]"
    write("conf/model/linear.yaml", f"# one layer\n_target_: torch.nn.Sequential\n_args_: {layers}")
    lines = ["# @package _global_", "# mine", "defaults: [digits, override /model: linear]"]
    lines += ["seed: 5", "vars: {rate: 0.5, out: 10}", "optim: {lr: '${vars.rate}'}"]
    lines += ["model: {_args_: [{_target_: torch.nn.Flatten}, {_target_: torch.nn.Linear,"]
    lines += ["  in_features: 64, out_features: '${vars.out}'}]}"]
    write("recipes/mine.yaml", "\n".join(lines) + "\n")


@pytest.mark.parametrize("word", ["recipes=mine", "experiment=mine", "+experiment=mine"])
def test_choices_of_the_present_folder_are_found(project, word):
    config = config_of(word)
    assert config["seed"] == 5
    assert config["model"]["_target_"] == "torch.nn.Sequential"


def test_help_lists_them(project):
    lines = [line.split() for line in paceline("train", "--help", "all").out.splitlines()]
    assert ["linear", "one", "layer"] in lines
    assert ["mine", "mine"] in lines


def test_explain_says_which_file_won(project):
    out = paceline("train", "experiment=mine", "--explain", "seed").out
    assert "  ./recipes/mine.yaml  5  <- this one counts\n" in out


@pytest.mark.parametrize(
    ("path", "words", "other"),
    [
        ("conf/model/digits.yaml", ["model=digits"], "conf/model/digits.yaml"),
        ("recipes/digits.yaml", [], "recipes/digits.yaml"),
        ("there/model/linear.yaml", ["recipes=mine"], "./conf/model/linear.yaml"),
        ("there/recipes/mine.yaml", ["recipes=mine"], "./recipes/mine.yaml"),
        ("there/objective/classify.yaml", [], "conf/objective/classify.yaml"),
    ],
)
def test_the_same_name_is_an_error_that_says_which_two(project, path, words, other):
    write(path, "seed: 9\n")
    Path("there").mkdir(exist_ok=True)
    line = refusal_of(*words, config_dir="there")
    assert line.startswith("error[C206]: ")
    place, what = line.removeprefix("error[C206]: ").split(": has the same name as ")
    assert place.removeprefix("./") == path
    assert what.split(";")[0].endswith(other)


def test_files_of_another_program_do_not_count():
    """A folder may have configurations of Hydra for a program of its own."""
    write("conf/train.yaml", "seed: 9\n")
    write("conf/seed/high.yaml", "9\n")
    write("conf/hydra/callbacks/x.yaml", "x: {_target_: builtins.print}\n")
    write("recipes.yaml", "seed: 9\n")
    assert config_of("seed=3")["seed"] == 3
    assert "C102]: hydra/callbacks: no such key or group" in refusal_of("hydra/callbacks=x")


def test_those_of_another_copy_of_paceline_are_ours():
    for path in ("framework/main.py", "conf/train.yaml", "recipes/digits.yaml"):
        write(path, "seed: 9\n")
    assert config_of()["seed"] == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("model: {_target_: evil.Net}", "C105"),
        ("allow_targets: [evil]", "C105"),
        ("hydra: {launcher: {_target_: evil.Launcher}}", "C125"),
    ],
    ids=["target", "grant", "hydra"],
)
def test_a_file_found_here_may_do_no_more_than_others(text, number):
    write("evil.py", "open('ran', 'w').close()\n")
    write("recipes/mine.yaml", f"# @package _global_\ndefaults: [digits]\n{text}\n")
    assert refusal_of("experiment=mine").startswith(f"error[{number}]")
    assert not Path("ran").exists()


def test_the_process_of_a_launcher_finds_them_from_elsewhere(project):
    with hydra_session("train") as hydra:
        master = hydra.compose_config("train", ["recipes=mine"], RunMode.MULTIRUN)
        sent = pickle.loads(pickle.dumps(hydra.config_loader))
        os.chdir("/")
        assert sent.load_sweep_config(master, ["recipes=mine"]).seed == 5


@pytest.mark.parametrize("word", ["vars.rate=0.25", "vars={rate: 0.25}"])
def test_other_keys_refer_to_vars(project, word):
    config = config_of("recipes=mine", word)
    assert config["optim"]["lr"] == 0.25
    assert config["vars"] == {"rate": 0.25, "out": 10}


def test_a_new_var_is_added_and_a_misspelled_one_is_not(project):
    assert config_of("vars={a: {b: x}}", "+vars.c=1")["vars"] == {"a": {"b": "x"}, "c": 1}
    assert "vars has no keys yet; put a + before it: +vars.a=VALUE" in refusal_of("vars.a=1")
    line = refusal_of("recipes=mine", "vars.rat=1")
    assert "(did you mean 'vars.rate'?); put a + before it: +vars.rat=VALUE" in line


def test_a_block_of_vars_is_checked_where_it_is_used():
    block = "{net: {_target_: os.system, command: x}}"
    assert config_of(f"vars={block}")["vars"]["net"]["_target_"] == "os.system"
    text = "# @package _global_\ndefaults: [digits, override /model: null]\n"
    write("recipes/mine.yaml", f"{text}vars: {block}\nmodel: ${{vars.net}}\n")
    assert "C105]: model._target_ = os.system" in refusal_of("recipes=mine")


def test_vars_and_tags_are_kept_and_shown_with_the_run(project):
    for name, tags in (("a", "[first,wide]"), ("b", "[second]")):
        words = ["experiment=mine", f"vars.rate={0.1 + len(tags)}", f"tags={tags}", "max_steps=1"]
        done = paceline("train", *words, f"hydra.run.dir=outputs/{name}")
        assert done.code == 0, done.err
    facts = read_json(Path("outputs/a/run.json"))
    assert (facts["vars"], facts["tags"]) == ({"rate": 12.1, "out": 10}, ["first", "wide"])
    table = paceline("runs").out
    assert "first," in table
    assert "vars.rate" in table
    assert "vars.out" not in table  # it does not differ
    chosen = paceline("runs", "tags=[wide]", "where=vars.rate > 12 and vars.out == 10").out
    assert "first," in chosen
    assert "second" not in chosen
    assert paceline("report", "outputs").code == 0
    page = next(Path("outputs").rglob("*.html")).read_text()
    assert "first, wide" in page
    assert "vars.rate" in page
