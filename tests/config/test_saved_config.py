"""The configuration of a run, read from its files; ``test_saved_run`` has the refusals."""

import json
from pathlib import Path

import pytest

from framework.config.saved_config import read_config, recorded_ranks
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


def test_the_newest_configuration_of_a_resumed_run_counts():
    config = config_of("data=synthetic", "prepare=null")
    write(config)
    Path("resolved.10.json").write_text(json.dumps({**config, "batch_size": 7}))
    Path("resolved.2.json").write_text(json.dumps({**config, "batch_size": 5}))
    assert read_config(Path())[0]["batch_size"] == 7


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


@pytest.mark.parametrize(
    "facts", [{}, {"starts": 3}, {"starts": [{}]}, {"starts": [{"ranks": "2"}]}]
)
def test_older_runs_do_not_say_how_many_ranks_they_had(facts):
    assert recorded_ranks(facts) is None
