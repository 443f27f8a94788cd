"""A saved run continues if it learns the same, and is refused with the reason if not."""

import copy
from contextlib import closing

import pytest
import torch

from framework.config.assemble import Assembly
from framework.config.resume import FOLLOWS, check_same, ending, evaluated_data, learned, restore
from framework.config.targets import UNFOLDED
from framework.config.training_parts import training_parts
from framework.contracts.records import Field, Manifest
from framework.errors import CheckpointError, ConfigError
from framework.train.trainer import Trainer
from tests.cli.command import config_of
from tests.config.assembled import SYNTHETIC, assembled

PARTS = ("model", "objective", "optim", "schedule", "precision", "augment", "transform", "order")
UNSET = ("limit", "clip_norm", "ema_decay", "freeze", "validate_every", "validate_first", "select")
CONFIG = {name: {"_target_": f"framework.{name}.some.Thing"} for name in PARTS}
CONFIG |= {**dict.fromkeys(UNSET), **UNFOLDED, "seed": 0, "shuffle": True, "last": "short"}
CONFIG |= {"ema_every": 1, "ema_ramp": 0.0, "ema_lookahead": False, "epochs": 3, "loader": {}}
CONFIG |= {"parallel": {"num_processes": 2}, "init": {"weights": None}}
CONFIG |= {"data": {"train": "x.h5", "val": None}}
MANIFEST = Manifest(10, {"x": Field("uint8", (3,))}, ["cat", "dog"], digest="ab")
CLIPS = {"_target_": "mine.Clips", "split": "train"}


def of(manifest=MANIFEST, batch_size=8, **changes):
    """Return what decides what a run learns. Blocks in ``changes`` add to their blocks."""
    config = copy.deepcopy(CONFIG)
    for key, value in changes.items():
        if isinstance(value, dict) and config.get(key) is not None:
            config[key] |= value
        else:
            config[key] = value
    return learned(config, batch_size, manifest)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"optim": {"lr": 0.2}}, r"optim\.lr \(nothing, now 0\.2\)"),
        ({"model": {"_target_": "framework.model.other.Thing"}}, r"model\._target_"),
        ({"augment": {"steps": [{"p": 0.5}]}}, r"augment\.steps\.0\.p \(nothing, now 0\.5\)"),
        ({"objective": {"smoothing": 0.1}}, r"objective\.smoothing"),
        ({"schedule": {"final": 0.5}}, r"schedule\.final"),
        ({"precision": {"dtype": "fp16"}}, r"precision\.dtype"),
        ({"transform": {"size": 8}}, r"transform\.size"),
        ({"order": {"window": 8}}, r"order\.window"),
        ({"limit": 5}, r"limit \(None, now 5\)"),
        ({"clip_norm": 1.0}, r"clip_norm \(None, now 1\.0\)"),
        ({"ema_decay": 0.5}, r"ema_decay \(None, now 0\.5\)"),
        ({"seed": 1}, r"seed \(0, now 1\)"),
        ({"batch_size": 16}, r"batch_size \(8, now 16\)"),
        ({"last": "drop"}, "last"),
        ({"select": "label < 4"}, "select"),
        ({"ema_lookahead": True}, r"ema_lookahead \(.*, now True\)"),
        ({"parallel": {"virtual_ranks": 4}}, r"parallel\.virtual_ranks \(nothing, now 4\)"),
        ({"optim": {"groups": [{"match": "x"}]}}, r"optim\.groups\.0\.match"),
        ({"optim": {"no_decay": ["bias"]}}, r"optim\.no_decay\.0"),
        ({"freeze": {"stem": 3}}, r"freeze\.stem \(nothing, now 3\)"),
    ],
)
def test_a_setting_that_changes_what_is_learned_is_refused_by_its_key(changed, words):
    with pytest.raises(CheckpointError, match=rf"K105\]: resume = run: .*other values of {words}"):
        check_same("run", of(), of(**changed), [])


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (Manifest(11, {}, ["cat", "dog"], digest="ab"), r"data\.records \(10, now 11\)"),
        (Manifest(10, {}, ["cat", "cow"], digest="ab"), r"data\.classes"),
        (Manifest(10, {}, ["cat", "dog"], digest="cd"), r"data\.digest"),
    ],
    ids=["records", "classes", "digest"],
)
def test_other_data_is_refused(manifest, words):
    with pytest.raises(CheckpointError, match=f"K105.*{words}"):
        check_same("run", of(), of(manifest), [])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"train": {**CLIPS, "split": "all"}}, r"data\.train\.split"),
        ({"train": {**CLIPS, "size": 3}}, r"data\.train\.size \(nothing, now 3\)"),
        ({"train": CLIPS, "collate": "mine.padded"}, r"data\.collate"),
        ({"train": CLIPS, "fields": ["a", "b"]}, r"data\.fields\.0"),
    ],
    ids=["argument", "new argument", "collate", "fields"],
)
def test_an_object_of_the_users_that_is_made_otherwise_is_other_data(data, words):
    before = of(data={"train": CLIPS, "val": None, "collate": None})
    with pytest.raises(CheckpointError, match=words):
        check_same("run", before, of(data=data), [])
    check_same("run", before, of(data=data), ["data.train", "data.collate", "data.fields"])


@pytest.mark.parametrize(
    "changed",
    [
        *({"epochs": 9}, {"max_steps": 9}, {"loader": {"depth": 4}}),
        {"parallel": {"num_processes": 4}},
        {"manifest": Manifest(10, {}, ["cat", "dog"])},
    ],
    ids=["epochs", "steps", "loader", "processes", "unknown digest"],
)
def test_how_the_work_is_cut_and_carried_may_differ(changed):
    check_same("run", of(), of(**changed), [])


def test_nothing_written_in_another_way_is_no_difference():
    nothing = of(optim={"groups": None, "no_decay": [], "layer_decay": None}, freeze=[])
    check_same("run", nothing, of(optim={"groups": {}, "no_decay": None}), [])
    assert of(freeze=["stem"]) == of(freeze={"stem": None}) != of(freeze={"stem": 3})


def test_validations_decide_what_is_learned_if_the_rate_follows_them():
    val = {"records": 7}
    assert learned(CONFIG, 8, MANIFEST, val) == of()
    plateau = learned({**CONFIG, "schedule": {"_target_": FOLLOWS}}, 8, MANIFEST, val)
    assert plateau.keys() - of().keys() == {"validate_every", "validation.records"}


def test_no_text_is_kept_since_it_may_be_secret():
    assert "hunter2" not in str(of(model={"token": "hunter2"}))
    assert of(model={"token": "hunter2"}) != of(model={"token": "hunter3"})


def test_validation_data_is_distinguished_by_its_path_or_by_how_it_is_made():
    def of_val(val):
        source = {"_target_": "framework.data.hdf5.hdf5_source"}
        config = {"data": {"val": val, "source": source}, "limit": None, **UNFOLDED, "select": None}
        is_single = not isinstance(val, dict) or "_target_" in val
        names = [""] if is_single else val
        return evaluated_data({name: Manifest(10, {}, []) for name in names}, config)

    assert of_val("a.h5") == of_val("./a.h5") != of_val("b.h5")
    assert of_val(CLIPS) == of_val(dict(CLIPS)) != of_val({**CLIPS, "split": "val"})
    sets = {"a": "a.h5", "b": "b.h5"}
    assert of_val(sets) == of_val({"b": "b.h5", "a": "a.h5"})
    assert of_val(sets) != of_val({"a": "b.h5", "b": "a.h5"})
    assert of_val({"a": "a.h5"}) != of_val({"b": "a.h5"})


@pytest.mark.parametrize("allow", [["optim.lr", "seed"], ["optim", "seed"]])
def test_what_is_allowed_by_name_or_as_a_part_may_differ(allow):
    check_same("run", of(), of(optim={"lr": 0.2}, seed=1), allow)
    with pytest.raises(ConfigError, match=r"C102.*resume.allow = \[optm\].*did you mean 'optim'"):
        check_same("run", of(), of(), [*allow, "optm"])


def test_a_refusal_names_the_keys_to_allow():
    with pytest.raises(CheckpointError) as refused:
        check_same("run", of(), of(optim={"lr": 0.2}, seed=1, ema_decay=0.5), ["seed"])
    allow = str(refused.value).split("resume.allow=[")[1].split("]")[0].split(",")
    assert sorted(allow) == ["ema_decay", "optim.lr"]
    check_same("run", of(), of(optim={"lr": 0.2}, ema_decay=0.5), allow)


def test_a_state_that_does_not_load_points_to_a_new_run():
    with pytest.raises(CheckpointError, match=r"K105.*a new run from its weights: init=RUN$"):
        check_same("RUN", of(), of(model={"width": 8}), [])
    init = of(init={"weights": "x.pt", "digest": "ab"})
    with pytest.raises(CheckpointError, match=r"K105.*begin a new run, since a resumed one has"):
        check_same("RUN", of(), init, [])


@pytest.fixture(scope="module")
def state():
    """Return the state of a run after two steps."""
    with assembled("max_steps=2") as assembly:
        trainer = Trainer(training_parts(assembly))
        trainer.fit()
        facts = {"learned": assembly.learns, "validation": assembly.validates, "init": None}
        return {**trainer.state_dict(), **facts, "ends": ending(assembly.config)}


def restored(state, *words, allow=()):
    """Return whether the validation data is another, and the trainer that continues."""
    config = config_of(*SYNTHETIC, "data.val=null", "max_steps=4", *words)
    config["resume"] = {"run": "RUN", "auto": False, "allow": list(allow)}
    with closing(Assembly(config, ())) as assembly:
        trainer = Trainer(training_parts(assembly))
        return restore(trainer, assembly, state), trainer


def test_a_state_continues_where_it_was_saved(state):
    val_changed, trainer = restored(state)
    assert not val_changed
    assert trainer.progress.step == 2
    for name, value in trainer.stepper.model.state_dict().items():
        assert torch.equal(value, state["model"][name])


def test_figures_of_other_validation_data_are_dropped(state):
    other = {"validation": {"data.records": 7}, "best": {"loss": 1.0, "step": 2}}
    val_changed, trainer = restored({**state, **other, "val": {"loss": 1.0}})
    assert val_changed
    assert trainer.best == {}


@pytest.mark.parametrize(
    ("change", "words", "allow", "line"),
    [
        ({}, ["optim.lr=0.123"], [], r"K105.*optim\.lr"),
        ({}, ["batch_size=64"], ["batch_size", "augment"], "K104.*was saved inside an epoch"),
        ({"progress": 2}, [], [], "K103.*its weights: init=RUN$"),
    ],
    ids=["learns something else", "inside an epoch", "of another form"],
)
def test_a_state_that_does_not_fit_is_refused(state, change, words, allow, line):
    with pytest.raises(CheckpointError, match=line):
        restored({**state, **change}, *words, allow=allow)


@pytest.mark.parametrize("last", ["drop", "wrap"])
def test_what_becomes_of_the_last_batch_may_change_in_an_epoch(state, last):
    with pytest.raises(CheckpointError, match=r"K105.* of last; .*'resume.allow=\[last\]'$"):
        restored(state, f"last={last}")
    assert restored(state, f"last={last}", allow=["last"])[1].progress.step == 2


def test_a_run_that_has_ended_continues_only_if_what_ends_it_has_changed(state):
    watchers = {"stop.patience": {"n": 1}, "watchers.a": {}}
    ended = {**state, "ended": "enough", "watching": {"reason": "late", "watchers": watchers}}
    assert restored(ended)[1].ended == "enough"
    assert restored(ended, "stop.after=2h")[1].ended == ""
