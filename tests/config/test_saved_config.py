"""The configuration of a run, read from its files; ``test_saved_run`` has the refusals."""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from framework.cli.environment import as_written
from framework.config.saved_config import read_config
from framework.errors import CheckpointError
from tests.commands.tune.test_candidate import config_of

FIELD = {"dtype": "uint8", "shape": [1, 8, 8], "encoding": "raw", "kind": "image"}
TRAIN = {"num_records": 3, "fields": {"image": FIELD}, "classes": ["a", "b"], "first_key": None}


def write(config, **facts):
    Path("resolved.json").write_text(json.dumps(config))
    Path("run.json").write_text(json.dumps({"data": {"train": TRAIN}, **facts}))


def test_values_that_the_data_gave_replace_auto():
    config = config_of("data=synthetic", "prepare=null")
    config["augment"]["mean"] = "auto"
    write(config, auto={"augment.mean": [0.5], "model.no_such.key": 3})
    read, train = read_config(Path())
    assert read["augment"]["mean"] == [0.5]
    assert train.fields["image"].shape == (1, 8, 8)
    assert train.classes == ["a", "b"]


def test_the_environment_is_read_where_the_run_named_it(monkeypatch):
    config = config_of("data=synthetic", "prepare=null")
    config["data"]["val"] = "${oc.env:PLACE}/val.h5"
    write(config)
    with pytest.raises(CheckpointError, match=r"K120.*variable PLACE is not set"):
        read_config(Path())
    monkeypatch.setenv("PLACE", "/data")
    assert read_config(Path())[0]["data"]["val"] == "/data/val.h5"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("32", 32),
        ("1e-3", 1e-3),
        ("null", None),
        ("true", True),
        ("[1, {a: [b]}]", [1, {"a": ["b"]}]),
        ("'32'", "32"),
        ("words as they are", "words as they are"),
    ],
)
def test_a_decoded_value_of_the_environment_is_decoded_again(text, value, monkeypatch):
    monkeypatch.setenv("BS", text)
    resolved = as_written(OmegaConf.create({"x": "${oc.decode:${oc.env:BS}}"}))
    config = config_of("data=synthetic", "prepare=null")
    config["data"] |= resolved
    write(config)
    read = read_config(Path())[0]["data"]["x"]
    assert (read, type(read)) == (value, type(value))
    assert read == OmegaConf.create({"x": "${oc.decode:${oc.env:BS}}"}).x


def test_decoded_values_may_be_parts_of_texts_and_lists(monkeypatch):
    monkeypatch.setenv("BS", "32")
    config = config_of("data=synthetic", "prepare=null")
    config["data"]["x"] = [
        "a-${oc.decode:${oc.env:BS}}-${oc.env:BS}",
        "${oc.decode:[${oc.env:BS}]}",
    ]
    write(config)
    assert read_config(Path())[0]["data"]["x"] == ["a-32-32", [32]]


@pytest.mark.parametrize("text", ["${oc.decode:${oc.env:BS}}", "${oc.decode:${oc.env:BS}"])
def test_what_cannot_be_decoded_is_refused_without_its_value(text, monkeypatch):
    monkeypatch.setenv("BS", "[secret")
    config = config_of("data=synthetic", "prepare=null")
    config["data"]["x"] = text
    write(config)
    with pytest.raises(CheckpointError, match=r"K120.*oc\.decode") as caught:
        read_config(Path())
    assert "secret" not in str(caught.value)


def test_the_newest_configuration_of_a_resumed_run_counts():
    config = config_of("data=synthetic", "prepare=null")
    write(config)
    Path("resolved.10.json").write_text(json.dumps({**config, "batch_size": 7}))
    Path("resolved.2.json").write_text(json.dumps({**config, "batch_size": 5}))
    assert read_config(Path())[0]["batch_size"] == 7


def test_a_configuration_that_lacks_a_key_is_refused():
    config = config_of("data=synthetic", "prepare=null")
    del config["deterministic"]
    write(config)
    with pytest.raises(CheckpointError, match=r"K120.*deterministic"):
        read_config(Path())


def test_a_run_that_never_began_is_refused():
    write(config_of("data=synthetic", "prepare=null"))
    Path("run.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"K120.*never began"):
        read_config(Path())


@pytest.mark.parametrize(
    "change", [{"batch_size": -1}, {"model": 3}, {"workers": {}}, {"order": 1}]
)
def test_values_that_cannot_be_are_refused(change):
    write({**config_of("data=synthetic", "prepare=null"), **change})
    with pytest.raises(CheckpointError, match="K120"):
        read_config(Path())
