"""The words of a command line: which are read how, and what they may allow or sweep."""

import os
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from framework.cli import arguments as module
from framework.commands.bench.bench import axes_of
from framework.errors import ConfigError


def parsed(word):
    return OverridesParser.create().parse_override(word).value()


@pytest.mark.parametrize(
    ("words", "value"),
    [(["--name", "x"], "x"), (["--name=x=y"], "x=y"), (["-n", "x"], "x"), (["--name"], None)],
    ids=["separate", "joined", "short", "without"],
)
def test_an_option_has_the_value_behind_it(words, value):
    assert module.typed_value(words, "--name", "-n") == value


def test_a_plain_word_stands_for_a_key_and_is_refused_beside_it():
    assert module.with_run(["a", "n=3"], "evaluate") == ["n=3", 'run="a"']
    assert module.with_run(["run=a"], "evaluate") == ["run=a"]
    with pytest.raises(ConfigError, match=r"C100.*a: stands beside run="):
        module.with_run(["a", "run=b"], "evaluate")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a=1", "epochs=1", "-m", "a=2", "a"], ({"a": "2"}, ["epochs=1", "-m", "a"], None)),
        (["--config-dir", ".", "x=1"], ({}, ["x=1"], ".")),
        (["-cd", ".", "x=1"], ({}, ["x=1"], ".")),
        (["--config-dir=.", "x=1"], ({}, ["x=1"], ".")),
    ],
    ids=["keys", "long", "short", "joined"],
)
def test_the_keys_of_a_command_and_the_config_dir_are_no_overrides(arguments, words):
    assert module.split_words(arguments, ["a", "b"]) == words


@pytest.mark.parametrize(
    ("path", "what"), [("no/new.json", "does not exist"), ("there", "is a folder"), ("", "folder")]
)
def test_an_output_that_cannot_be_a_file_is_refused(path, what):
    Path("there").mkdir()
    module.check_output("there/new.json", 191)
    with pytest.raises(ConfigError, match=f"C191.*{what}"):
        module.check_output(path, 191)


@pytest.mark.parametrize("value", ["", 'a"b', "a\\b", 'a\\"b', "a\\", "{[(,$", "Größe (1)"])
def test_a_quoted_value_is_read_literally(value):
    assert str(parsed(f"key={module.quoted(value)}")) == value


@pytest.mark.parametrize("name", ["Größe (1)", "a&b", "it's", "x~#!", "par(1", 'a"b c(', "a\\ü"])
def test_a_folder_may_have_any_name(name):
    assert parsed(module.literal(f"input.path={name}/x.npz")) == f"{name}/x.npz"


@pytest.mark.parametrize(
    "word",
    [
        *("epochs=3", "-m", "--config-dir=ä", "a=[ü", "a={ü", "a='ü'", "optim.lr=choice(1,2)"),
        *("optim.lr=choice(1,", "a=b=c", "a=$x", "resume=ä"),
    ],
)
def test_lists_references_and_what_hydra_reads_are_left_as_they_are(word):
    assert module.literal(word) == word


@pytest.mark.parametrize(
    ("word", "whole"),
    [
        ("init=x.pt", "init.weights=x.pt"),
        ("init=x.pt,y.pt", "init.weights=x.pt,y.pt"),
        ("init=a,b", 'init.weights="a,b"'),  # a file
        ("init={weights: x.pt}", "init={weights: x.pt}"),
        ("metrics.x={_target_: A}", "++metrics.x={_target_: A}"),
        ("watchers={_target_: A}", "++watchers={_target_: A}"),
        ("metrics=[a,b]", "metrics=[a,b]"),
        ("select=label in [3, 5]", 'select="label in [3, 5]"'),
        ("data.val_transform=resize", "transform@data.val_transform=resize"),
        ("data.val_transform=null", "~transform@data.val_transform"),
    ],
)
def test_a_short_word_stands_for_what_hydra_takes(word, whole):
    Path("a,b").touch()
    assert module.literal(word) == whole


@pytest.mark.parametrize(
    "value",
    [
        {"_target_": "mine.Clips", "count": 3, "share": 0.5, "part": None, "on": True},
        {"root": "/a b/c, d", "names": ["true", "1", "x"], "inner": {"text": 'say "so"'}},
        ["wave", "label"],
        {},
    ],
    ids=["scalars", "texts", "list", "empty"],
)
def test_a_block_is_read_as_it_was_written(value):
    assert parsed(f"key={module.block_words(value)}") == value


@pytest.fixture
def own_path(monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_packages_are_allowed_by_a_typed_word_or_the_variable(monkeypatch):
    monkeypatch.setenv(module.VARIABLE, "theirs")
    assert module.granted(["epochs=1", "+allow_targets=[mine]"]) == module.Grant(
        frozenset({"epochs", "allow_targets"}), "theirs"
    )
    monkeypatch.delenv(module.VARIABLE)
    assert module.granted(["epochs=1"]) == module.Grant(frozenset({"epochs"}), "")


def test_allowed_packages_are_found_in_this_directory(own_path):
    assert module.allowed_targets({}, module.Grant(frozenset(), "")) == ()
    assert os.getcwd() not in sys.path
    allowed = module.allowed_targets(
        {"allow_targets": ["mine"]}, module.Grant(frozenset({"allow_targets"}), "theirs")
    )
    assert {"mine.", "theirs."} <= set(allowed)
    assert os.getcwd() in sys.path


@pytest.mark.parametrize(
    ("given", "typed", "number"),
    [
        pytest.param(["mine"], False, "C105", id="by a file"),
        pytest.param("mine", True, "C101", id="no list"),
    ],
)
def test_packages_are_not_allowed(given, typed, number):
    with pytest.raises(ConfigError, match=number):
        module.allowed_targets(
            {"allow_targets": given}, module.Grant(frozenset(["allow_targets"] * typed), "")
        )


def test_sweeps_are_hydras_own():
    words = ["loader=plain,stream", "workers.num=range(0,3)", "+x=choice(a,b)", "data=glob(hd*)"]
    axes, fixed = axes_of([*words, "epochs=3", "optim.lr='a,b'"])
    axes_of_words = {"loader": ["plain", "stream"], "workers.num": ["0", "1", "2"]}
    assert axes == {**axes_of_words, "+x": ["a", "b"], "data": ["hdf5"]}
    assert fixed == ["epochs=3", "optim.lr='a,b'"]


def test_a_recipe_sweeps_unless_the_command_line_replaces_a_key():
    axes, fixed = axes_of(["recipes=sweep_combinations", "data=hdf5", "loader=plain,stream"])
    typed = {"parallel": ["none", "dp", "ddp"], "precision": ["fp32", "amp"]}
    assert axes == {**typed, "loader": ["plain", "stream"]}
    assert fixed == ["recipes=sweep_combinations", "data=hdf5"]


@pytest.mark.parametrize(
    ("word", "number"),
    [("optim.lr=interval(0,1)", "C186"), ("hydra.job.chdir=true,false", "C186"), ("a=[1", "C100")],
)
def test_a_sweep_without_a_list_of_values_is_refused(word, number):
    with pytest.raises(ConfigError, match=number):
        axes_of([word])


MLFLOW = {"_target_": "framework.sink.mlflow.MLflowSink"}


@pytest.mark.parametrize(
    "config",
    [
        {"output": {"path": "/elsewhere/x.csv"}},
        {"output": {"path": "../x.csv"}},
        {"output": {"_target_": "framework.store.hdf5_store.HDF5Writer", "path": "/there/x.h5"}},
        {"prepare": {"train": {}}, "dataset": "/elsewhere", "data": {"train": "/elsewhere/a.h5"}},
        {"prepare": {"train": {}}, "dataset": "link/../x", "data": {"train": "link/../x/a.h5"}},
        {"sink": {"a": {**MLFLOW, "uri": "http://elsewhere"}}},
        {"sink": {"a": {**MLFLOW, "uri": "databricks"}}},
        {"sink": {"a": {**MLFLOW, "uri": "postgresql://elsewhere/x"}}},
        {"sink": {"a": {**MLFLOW, "uri": "sqlite:////elsewhere/x.db"}}},
        {"sink": {"a": {**MLFLOW, "uri": "sqlite:///file:/elsewhere/x.db?uri=true"}}},
        {"sink": {"a": {**MLFLOW, "uri": "file:%2e%2e/x"}}},
        {"parallel": {"endpoint": "elsewhere:29400"}},
    ],
)
def test_a_file_names_no_server_and_no_place_outside_this_folder(config):
    Path("link").symlink_to("/usr/lib")
    with pytest.raises(ConfigError, match=r"C207.*named by a file"):
        module.allowed_targets(
            config, module.granted(["epochs=1", "sink=[mlflow]", "parallel=ddp"])
        )


def test_a_typed_word_names_any_place_and_any_server():
    config = {
        "output": {"path": "/elsewhere"},
        "sink": {"mlflow": {**MLFLOW, "uri": "http://here"}},
        "parallel": {"endpoint": "here:29400"},
    }
    words = ["output=/elsewhere", "sink.mlflow.uri=http://here", "parallel.endpoint=here:29400"]
    assert module.allowed_targets(config, module.granted(words)) == ()


def test_a_file_names_places_below_this_folder_and_data_that_is_there(tmp_path):
    (tmp_path / "a.h5").touch()
    config = {
        "prepare": {"train": {}},
        "dataset": str(tmp_path),
        "data": {"train": str(tmp_path / "a.h5"), "val": None},
        "output": {"path": "results/x.csv"},
        "sink": {"mlflow": {**MLFLOW, "uri": "sqlite:///runs.db"}, "jsonl": {}},
        "parallel": {"endpoint": None},
    }
    assert module.allowed_targets(config, module.granted([])) == ()
