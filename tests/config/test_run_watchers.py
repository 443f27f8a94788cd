"""Metrics, what is best, and watchers, as a configuration names them."""

from contextlib import closing

import pytest
import torch

from framework.config.assemble import assemble
from framework.config.preflight import ModelTrial
from framework.config.run_watchers import make_goal, make_metrics, make_watching, try_metrics
from framework.config.training_parts import training_parts
from framework.contracts.training import Watcher
from framework.errors import ConfigError
from framework.objective.classify import Classify
from framework.train.goal import Goal
from tests.commands.tune.test_candidate import config_of
from tests.conftest import make_records, write_store

SYNTHETIC = ("data=synthetic", "prepare=null", "workers.num=0")
CLASSIFY = Classify("image", "label", 0.0)
TRIAL = ModelTrial({"loss": 1.0, "accuracy": 0.5, "odd": 0.1}, None)


def assembled(*words, allowed=()):
    return closing(assemble(config_of(*SYNTHETIC, *words), allowed))


def goal_of(*words, trial=TRIAL, key="best"):
    with assembled(*words) as assembly:
        return make_goal(key, assembly, CLASSIFY, trial, None)


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        ([], None),
        (["best.metric=accuracy"], Goal("accuracy", True)),
        (["best.metric=loss"], Goal("loss", False)),
        (["best.metric=odd", "best.mode=min"], Goal("odd", False)),
        (["best.metric=accuracy", "best.mode=min"], Goal("accuracy", False)),
    ],
)
def test_the_objective_says_whether_higher_is_better(words, goal):
    assert goal_of(*words) == goal


def test_an_unknown_direction_must_be_typed():
    with pytest.raises(ConfigError, match=r"C338\]: best\.mode = auto: .*odd.*best\.mode=max"):
        goal_of("best.metric=odd")


def test_an_unknown_metric_is_refused_before_the_first_step(tmp_path):
    words = ("stop.metric=f1", "stop.patience=1")
    with assembled(*words) as assembly, pytest.raises(ConfigError, match=r"C331.*loss, accuracy"):
        training_parts(assembly, tmp_path)


def test_a_metric_to_search_for_that_no_validation_has_is_refused_before_the_first_step(tmp_path):
    with assembled("search_metric=acuracy") as assembly, pytest.raises(ConfigError) as caught:
        training_parts(assembly, tmp_path)
    assert "C331]: search_metric = acuracy: " in str(caught.value)


def test_a_metric_of_a_set_is_named_by_the_set():
    records = make_records(9)
    paths = [write_store(f"{name}.h5", records) for name in ("train", "a", "b")]
    sets = f"data.val={{a: {paths[1]}, b: {paths[2]}}}"
    words = ("data=hdf5", f"data.train={paths[0]}", sets, "workers.num=0", "augment=none")
    with closing(assemble(config_of(*words, "best.metric=b.accuracy"), ())) as assembly:
        assert make_goal("best", assembly, CLASSIFY, TRIAL, None) == Goal("b.accuracy", True)
        names = {**assembly.config, "best": {"metric": "c.accuracy", "mode": "auto"}}
    with (
        closing(assemble(names, ())) as assembly,
        pytest.raises(ConfigError, match=r"a\.loss.*b\.l"),
    ):
        make_goal("best", assembly, CLASSIFY, TRIAL, None)


def test_metrics_take_the_number_of_classes_from_the_data_and_say_their_direction():
    pytest.importorskip("torchmetrics")
    words = ("metrics=[macro_f1,confusion,class_recall]", "best.metric=macro_f1")
    with assembled(*words) as assembly:
        metrics = make_metrics(assembly.config, assembly.allowed, assembly.parallel, assembly.say)
        assert assembly.from_data["metrics.macro_f1.num_classes"] == 10
        predictions = torch.rand(8, 10).softmax(1), torch.arange(8)
        trial = try_metrics(metrics, ModelTrial({"loss": 1.0}, predictions))
        assert trial.means.keys() == {"loss", "macro_f1"}
        goal = make_goal("best", assembly, CLASSIFY, trial, metrics)
    assert goal == Goal("macro_f1", True)


def test_a_metric_may_not_have_a_name_of_the_objective_s():
    pytest.importorskip("torchmetrics")
    block = "{_target_: torchmetrics.classification.MulticlassAccuracy, num_classes: 10}"
    with assembled(f"+metrics.accuracy={block}") as assembly:
        metrics = make_metrics(assembly.config, assembly.allowed, assembly.parallel, assembly.say)
    predictions = torch.rand(8, 10).softmax(1), torch.arange(8)
    with pytest.raises(ConfigError, match=r"C332\]: metrics\.accuracy: is the name of a metric"):
        try_metrics(metrics, ModelTrial({"loss": 1.0, "accuracy": 0.5}, predictions))


class Mine(Watcher):
    pass


def watching_of(*words, target="Mine"):
    with assembled(*words) as assembly:
        block = {"_target_": f"{__name__}.{target}"}
        object.__setattr__(assembly, "config", {**assembly.config, "watchers": {"a": block}})
        object.__setattr__(assembly, "allowed", ("tests.",))
        return make_watching(assembly, None, None).state_dict()["watchers"]


def test_the_users_watchers_stand_beside_ours():
    names = watching_of("stop.patience=3", "stop.after=2h")
    assert list(names) == ["watchers.a", "stop.patience", "stop.after"]
