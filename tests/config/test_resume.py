import copy

import pytest
import torch

from framework.config.resume import (
    FOLLOWS,
    check_form,
    check_same,
    followed,
    learned,
    validation_data,
)
from framework.config.targets import UNFOLDED
from framework.contracts.records import Field, Manifest
from framework.errors import CheckpointError, ConfigError

PARTS = ("model", "objective", "optim", "schedule", "precision", "augment", "transform", "order")
CONFIG = {
    **{name: {"_target_": f"framework.{name}.some.Thing"} for name in PARTS},
    "seed": 0,
    "shuffle": True,
    "last": "short",
    "limit": None,
    "clip_norm": None,
    "ema_decay": None,
    "ema_every": 1,
    "ema_ramp": 0.0,
    "ema_lookahead": False,
    "freeze": None,
    "validate_every": None,
    "select": None,
    "fold": None,
    "folds": None,
    "fold_by": None,
    "epochs": 3,
    "loader": {},
    "parallel": {"num_processes": 2},
    "init": {"weights": None},
    "data": {"train": "x.h5", "val": None},
}
MANIFEST = Manifest(10, {"x": Field("uint8", (3,))}, ["cat", "dog"], digest="ab")


def of(manifest=MANIFEST, batch_size=8, **changes):
    config = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        if isinstance(value, dict) and config.get(key) is not None:
            config[key] |= value
        else:
            config[key] = value
    return learned(config, batch_size, manifest)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"optim": {"lr": 0.2}}, "optim.lr (nothing, now 0.2)"),
        ({"model": {"_target_": "framework.model.other.Thing"}}, "model._target_"),
        ({"seed": 1}, "seed (0, now 1)"),
        ({"shuffle": False}, "shuffle (True, now False)"),
        ({"batch_size": 16}, "batch_size (8, now 16)"),
        ({"ema_decay": 0.9}, "ema_decay (None, now 0.9)"),
        ({"augment": {"steps": [{"p": 0.5}]}}, "augment.steps.0.p (nothing, now 0.5)"),
        ({"manifest": Manifest(11, {}, ["cat", "dog"], digest="ab")}, "data.records (10, now 11)"),
        ({"manifest": Manifest(10, {}, ["cat", "cow"], digest="ab")}, "data.classes"),
        ({"manifest": Manifest(10, {}, ["cat", "dog"], digest="cd")}, "data.digest"),
    ],
)
def test_what_changes_what_is_learned_is_refused_by_its_key(changed, word):
    with pytest.raises(CheckpointError) as refused:
        check_same("run", of(), of(**changed), [])
    assert f"error[K105]: resume = run: was saved with other values of {word}" in str(refused.value)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"last": "drop"}, "last"),
        ({"optim": {"scaling": "sqrt"}}, "optim.scaling"),
        ({"parallel": {"virtual_ranks": 4}}, r"parallel.virtual_ranks \(nothing, now 4\)"),
        ({"ema_lookahead": True}, r"ema_lookahead \(False, now True\)"),
        ({"optim": {"groups": {"a": {"match": "x", "until": 0.5}}}}, "optim.groups.a.match"),
        ({"optim": {"groups": [{"match": "x"}]}}, "optim.groups.0.match"),
        ({"optim": {"no_decay": ["bias"]}}, "optim.no_decay.0"),
        ({"optim": {"layer_decay": 0.5}}, r"optim.layer_decay \(nothing, now 0.5\)"),
        ({"freeze": ["stem"]}, "freeze.stem"),
        ({"freeze": {"stem": 3}}, r"freeze.stem \(nothing, now 3\)"),
    ],
)
def test_keys_beside_the_parts_decide_what_is_learned(changed, word):
    with pytest.raises(CheckpointError, match=word):
        check_same("run", of(), of(**changed), [])


def test_validations_decide_what_is_learned_if_the_rate_follows_them():
    config = {**CONFIG, "schedule": {"_target_": "framework.schedule.constant.Constant"}}
    assert followed(config, {"path": "a"}) == {}
    config["schedule"] = {"_target_": FOLLOWS}
    assert followed(config, {"path": "a"}) == {"validate_every": None, "validation.path": "a"}


@pytest.mark.parametrize(
    "changed",
    [
        {"epochs": 9},
        {"loader": {"depth": 4}},
        {"parallel": {"num_processes": 4}},
        {"manifest": Manifest(10, {}, ["cat", "dog"])},
    ],
)
def test_what_cuts_and_carries_is_free(changed):
    check_same("run", of(), of(**changed), [])


@pytest.mark.parametrize(
    "allow", [["optim.lr", "seed"], ["optim", "seed"], ["seed", "model", "optim"]]
)
def test_what_is_allowed_by_name_or_as_a_part_may_differ(allow):
    check_same("run", of(), of(optim={"lr": 0.2}, seed=1), allow)
    with pytest.raises(ConfigError, match=r"C102.*resume.allow = \[optm\].*did you mean 'optim'"):
        check_same("run", of(), of(), [*allow, "optm"])


def test_the_way_to_allow_it_is_said_and_is_the_right_one():
    with pytest.raises(CheckpointError) as refused:
        check_same("run", of(), of(optim={"lr": 0.2}, seed=1, ema_decay=0.5), ["seed"])
    allow = str(refused.value).split("resume.allow=[")[1].split("]")[0].split(",")
    assert sorted(allow) == ["ema_decay", "optim.lr"]
    check_same("run", of(), of(optim={"lr": 0.2}, ema_decay=0.5), allow)


def test_no_text_is_kept_since_it_may_be_secret():
    assert "hunter2" not in str(of(model={"token": "hunter2"}))
    assert of(model={"token": "hunter2"}) != of(model={"token": "hunter3"})


STATE = {
    "progress": {"step": 3, "epoch": 0, "epoch_step": 3, "scheduled": 3, "missed": 0},
    "best": {"loss": 0.5, "step": 2},
    "val": {"loss": 0.5},
    "optimizer": {"state": {0: {"momentum_buffer": torch.zeros(2), "step": 1, "x": None}}},
    "trained_s": 1.5,
    "ended": "",
    "watching": {"reason": "", "watchers": {}},
}


CLIPS = {"_target_": "mine.Clips", "split": "train"}


@pytest.mark.parametrize(
    ("data", "word"),
    [
        ({"train": {**CLIPS, "split": "all"}}, "data.train.split"),
        ({"train": {**CLIPS, "size": 3}}, "data.train.size (nothing, now 3)"),
        ({"train": CLIPS, "collate": "mine.padded"}, "data.collate"),
        ({"train": CLIPS, "fields": ["a", "b"]}, "data.fields.0"),
    ],
)
def test_an_object_of_the_users_is_another_if_it_is_made_otherwise(data, word):
    before = of(data={"train": CLIPS, "val": None, "collate": None})
    with pytest.raises(CheckpointError) as refused:
        check_same("run", before, of(data=data), [])
    assert word in str(refused.value)
    check_same("run", before, of(data=data), ["data.train", "data.collate", "data.fields"])


def test_validation_data_is_identified_by_its_path_or_by_how_it_is_made():
    manifest = Manifest(10, {}, [])

    def of_val(val):
        config = {"data": {"val": val}, "limit": None, **UNFOLDED, "select": None}
        return validation_data({"": manifest}, config)

    assert of_val("a.h5") == of_val("./a.h5") != of_val("b.h5")
    assert of_val(CLIPS) == of_val(dict(CLIPS)) != of_val({**CLIPS, "split": "val"})


@pytest.mark.parametrize(
    "changes",
    [
        {"progress": {"step": float("inf")}},
        {"progress": {"step": None}},
        {"progress": {"step": -1}},
        {"progress": {"step": True}},
        {"best": {"accuracy": 0.5, "step": 2}},
        {"best": {"loss": torch.zeros(0)}},
        {"val": {"loss": "low"}},
        {"optimizer": {"state": {0: {"momentum_buffer": {1, 2}}}}},
        {"optimizer": {"state": {0: {"momentum_buffer": [{"a": {1, 2}}]}}}},
    ],
)
def test_a_state_of_a_form_that_no_run_saves_is_refused(changes):
    with pytest.raises((ValueError, TypeError), match=next(iter(changes))):
        check_form({**STATE, **changes})


def test_a_state_that_does_not_load_points_to_a_new_run_from_its_weights():
    with pytest.raises(CheckpointError, match=r"K105.*a new run from its weights: init=RUN$"):
        check_same("RUN", of(), of(model={"width": 8}), [], lambda: False)


def test_several_validation_sets_are_distinguished_by_their_names():
    def of(**val):
        data = {"val": val, "source": {"_target_": "framework.data.hdf5.hdf5_source"}}
        config = {"data": data, "limit": None, **UNFOLDED, "select": None}
        return validation_data({name: Manifest(10, {}, []) for name in val}, config)

    assert of(a="a.h5", b="b.h5") == of(b="b.h5", a="a.h5") != of(a="b.h5", b="a.h5")
    assert of(a="a.h5") != of(b="a.h5")


@pytest.mark.parametrize(
    "changes",
    [
        {"ended": 3},
        {"trained_s": -1.0},
        {"trained_s": float("nan")},
        {"watching": {"watchers": {"stop.patience": 3}}},
    ],
)
def test_what_watchers_left_has_a_form(changes):
    with pytest.raises((TypeError, ValueError)):
        check_form({**STATE, **changes})
