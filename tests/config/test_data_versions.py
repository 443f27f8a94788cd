import json
from pathlib import Path

import pytest

from framework.config.data_versions import with_saved_versions
from framework.config.resume import learned, validation_data
from framework.store.concatenated import MixedStore
from framework.store.open_store import open_store
from tests.cli.command import is_one_error_line, losses, paceline, write_linear
from tests.config.test_resume import CONFIG as OLDER
from tests.conftest import make_records, write_store
from tests.contract.cases import edit

CONFIG = {**OLDER, "select": None, "fold": None, "folds": None, "fold_by": None}


def state_of(train, val=None):
    """Return the part of a state that tells which data it is of."""
    config = {**CONFIG, "data": {"train": train, "val": val}}
    manifests = {"": open_store(val).manifest} if val else {}
    return {
        "learned": learned(config, 4, open_store(train).manifest),
        "validation": validation_data(manifests, config),
    }


def config_of(train, val=None, allow=()):
    return {"data": {"train": train, "val": val}, "resume": {"allow": list(allow)}}


@pytest.fixture
def store():
    path = write_store("d.h5", make_records(9))
    edit(path, "drop", "label == 1")
    edit(path, "append", "d.h5@1")
    return path


@pytest.mark.parametrize("number", [1, 2])
def test_a_state_of_an_older_version_reads_it_again(store, number):
    config, notes = with_saved_versions(config_of(store), state_of(f"d.h5@{number}"))
    assert config["data"]["train"] == f"d.h5@{number}"
    assert len(notes) == 1
    assert f"d.h5@{number}" in notes[0]


def test_a_state_of_the_newest_version_stays_as_it_is(store):
    given = config_of(store, store)
    assert with_saved_versions(given, state_of(store, store)) == (given, [])


def test_validation_follows_too(store):
    config, notes = with_saved_versions(config_of(store, store), state_of(store, "d.h5@1"))
    assert config["data"] == {"train": store, "val": "d.h5@1"}
    assert len(notes) == 1


@pytest.mark.parametrize("allow", ["data", "data.digest"])
def test_the_newest_version_is_read_if_asked(store, allow):
    given = config_of(store, allow=[allow])
    assert with_saved_versions(given, state_of("d.h5@1")) == (given, [])


def test_a_typed_version_stays(store):
    given = config_of("d.h5@2")
    assert with_saved_versions(given, state_of("d.h5@1")) == (given, [])


def test_data_that_no_version_is_stays(store):
    other = write_store("x.h5", make_records(5))
    given = config_of(store)
    assert with_saved_versions(given, state_of(other)) == (given, [])


def test_each_store_of_a_mixture_follows(store):
    other = write_store("x.h5", make_records(5))
    mixed = MixedStore({"a": open_store("d.h5@2"), "b": open_store(other)})
    state = {"learned": learned(CONFIG, 4, mixed.manifest), "validation": None}
    config, _ = with_saved_versions(config_of({"a": store, "b": other}), state)
    assert config["data"]["train"] == {"a": "d.h5@2", "b": other}


def test_the_arguments_of_an_object_stay(store):
    block = {"_target_": "mine.Clips", "path": store, "size": 3}
    given = config_of(block, {"a": block, "b": store})
    given["data"]["source"] = {"_target_": "framework.data.dataset.dataset_source"}
    assert with_saved_versions(given, state_of("d.h5@1")) == (given, [])


def test_a_resumed_run_continues_on_the_version_that_it_began_with():
    write_linear(Path("conf"))
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    words = ["--config-dir", "conf", "recipes=linear", "data.train=d.h5", "data.val=null"]
    words += ["report_every=1", "max_steps=3"]
    for run_dir in ("same", "run"):
        assert paceline("train", *words, f"hydra.run.dir={run_dir}").code == 0
    assert paceline("train", "resume=same", "max_steps=9").code == 0
    edit("d.h5", "append", "d.h5")
    done = paceline("train", "resume=run", "max_steps=9")
    assert done.code == 0, done.err
    assert "this run continues on its own: d.h5@1" in done.out + done.err
    assert losses(Path("run")) == losses(Path("same"))
    assert version_in(Path("run")) == 1
    assert is_one_error_line(paceline("train", "resume=run", "data.train=d.h5@2"), "K105")


def test_a_resumed_run_takes_the_newest_version_if_asked():
    write_linear(Path("conf"))
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    words = ["--config-dir", "conf", "recipes=linear", "data.train=d.h5", "data.val=null"]
    assert paceline("train", *words, "epochs=1", "hydra.run.dir=run").code == 0
    edit("d.h5", "append", "d.h5")
    done = paceline("train", "resume=run", "resume.allow=[data,augment]", "epochs=2")
    assert done.code == 0, done.err
    assert version_in(Path("run")) == 2


def version_in(run_dir):
    return json.loads((run_dir / "run.json").read_text())["data"]["train"]["version"]


def test_each_validation_set_is_read_in_its_own_version(store):
    source = {"_target_": "framework.data.hdf5.hdf5_source"}
    val = {"a": "d.h5@1", "b": "d.h5@2"}
    data = {"train": store, "val": val, "source": source}
    manifests = {name: open_store(path).manifest for name, path in val.items()}
    state = {
        "learned": learned({**CONFIG, "data": data}, 4, open_store(store).manifest),
        "validation": validation_data(manifests, {**CONFIG, "data": data}),
    }
    given = {"data": {**data, "val": {"a": store, "b": store}}, "resume": {"allow": []}}
    config, notes = with_saved_versions(given, state)
    assert config["data"] == data
    assert "d.h5@1, d.h5@2" in notes[0]
