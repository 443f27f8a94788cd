"""Metrics, what is best, and watchers, as a configuration or a call from Python names them."""

from contextlib import closing
from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from framework.config.assemble import Assembly
from framework.config.make_trainer import make_trainer
from framework.config.preflight import ModelTrial
from framework.config.training_parts import (
    make_goal,
    make_metrics,
    make_watching,
    training_parts,
    try_metrics,
)
from framework.contracts.training import Watcher
from framework.errors import ConfigError
from framework.objective.classify import Classify
from framework.train.watching import Goal
from tests.cli.command import config_of
from tests.config.assembled import SYNTHETIC
from tests.conftest import make_records, write_store
from tests.data.own_items import make_loader, pairs

CLASSIFY = Classify("image", "label", 0.0)
TRIAL = ModelTrial({"loss": 1.0, "accuracy": 0.5, "odd": 0.1}, None)
PREDICTIONS = torch.rand(8, 10).softmax(1), torch.arange(8)


def validated(*words):
    """Return a context with the parts of a run that validates."""
    return closing(Assembly(config_of(*SYNTHETIC, *words), ()))


def metrics_of(assembly):
    return make_metrics(assembly.config, assembly.allowed, assembly.parallel, assembly.say, ())


# ------------------------------------------------------------------------------------ what is best


@pytest.mark.parametrize(
    ("words", "goal"),
    [
        ([], None),
        (["best.metric=accuracy"], Goal("accuracy", True)),
        (["best.metric=loss"], Goal("loss", False)),
        (["best.metric=odd", "best.mode=min"], Goal("odd", False)),
    ],
    ids=["none", "higher", "lower", "typed"],
)
def test_the_objective_says_whether_higher_is_better(words, goal):
    with validated(*words) as assembly:
        assert make_goal("best", assembly, CLASSIFY, TRIAL, None) == goal


def test_an_unknown_direction_must_be_typed():
    with (
        validated("best.metric=odd") as assembly,
        pytest.raises(ConfigError, match=r"C338\]: best\.mode = auto: .*odd.*best\.mode=max"),
    ):
        make_goal("best", assembly, CLASSIFY, TRIAL, None)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["stop.metric=f1", "stop.patience=1"], r"C331\]: stop\.metric = f1.*loss, accuracy"),
        (["search_metric=acuracy"], r"C331\]: search_metric = acuracy"),
    ],
    ids=["stop", "search"],
)
def test_an_unknown_metric_is_refused_before_the_first_step(tmp_path, words, line):
    with validated(*words) as assembly, pytest.raises(ConfigError, match=line):
        training_parts(assembly, tmp_path)
    with validated("search_metric=acuracy", "data.val=null") as assembly:
        assert training_parts(assembly, tmp_path).val is None


def test_a_metric_of_a_validation_set_is_named_by_the_set():
    paths = [write_store(f"{name}.h5", make_records(9)) for name in ("train", "a", "b")]
    sets = f"data.val={{a: {paths[1]}, b: {paths[2]}}}"
    words = ("data=hdf5", f"data.train={paths[0]}", sets, "augment=none")
    with validated(*words, "best.metric=b.accuracy") as assembly:
        assert make_goal("best", assembly, CLASSIFY, TRIAL, None) == Goal("b.accuracy", True)
    with (
        validated(*words, "best.metric=c.accuracy") as assembly,
        pytest.raises(ConfigError, match=r"a\.loss.*b\.l"),
    ):
        make_goal("best", assembly, CLASSIFY, TRIAL, None)


# ------------------------------------------------------------------------------------------ metrics


def test_metrics_take_the_number_of_classes_from_the_data_and_know_their_direction():
    pytest.importorskip("torchmetrics")
    words = ("metrics=[macro_f1,confusion,class_recall]", "best.metric=macro_f1")
    with validated(*words) as assembly:
        metrics = metrics_of(assembly)
        assert assembly.from_data["metrics.macro_f1.num_classes"] == 10
        trial = try_metrics(metrics, ModelTrial({"loss": 1.0}, PREDICTIONS))
        assert trial.means.keys() == {"loss", "macro_f1"}
        goal = make_goal("best", assembly, CLASSIFY, trial, metrics)
    assert goal == Goal("macro_f1", True)


def test_a_metric_with_a_name_of_the_objective_is_refused():
    pytest.importorskip("torchmetrics")
    block = "{_target_: torchmetrics.classification.MulticlassAccuracy, num_classes: 10}"
    with validated(f"+metrics.accuracy={block}") as assembly:
        metrics = metrics_of(assembly)
    with pytest.raises(ConfigError, match=r"C332\]: metrics\.accuracy: is the name of a metric"):
        try_metrics(metrics, ModelTrial({"loss": 1.0, "accuracy": 0.5}, PREDICTIONS))


# ----------------------------------------------------------------------------------------- watchers


class Mine(Watcher):
    pass


class Odd(nn.Module):
    pass


def watchers_of(target, *words):
    """Return the names of the watchers of a run with one of the user's."""
    with validated(*words) as assembly:
        block = {"_target_": f"{__name__}.{target}"}
        assembly.config = {**assembly.config, "watchers": {"a": block}}
        assembly.allowed = ("tests.",)
        return list(make_watching(assembly, None, None).state_dict()["watchers"])


def test_the_users_watchers_work_beside_ours():
    names = watchers_of("Mine", "stop.patience=3", "stop.after=2h")
    assert names == ["watchers.a", "stop.patience", "stop.after"]


def test_an_object_without_the_methods_of_a_watcher_is_refused():
    with pytest.raises(ConfigError, match=r"C333\]: watchers\.a: makes an object of class Odd"):
        watchers_of("Odd")


# -------------------------------------------------------------------------------- calls from Python


def trained(train, **options):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    objective = Classify("wave", "label", label_smoothing=0.0)
    options = {"epochs": 2, "fields": ["wave", "label"], "say": lambda _: None, **options}
    trainer = make_trainer(model, objective, optimizer, train=train, **options)
    trainer.fit()
    return trainer


def test_a_loader_trains_as_in_a_plain_loop():
    trainer = trained(make_loader(shuffle=False))
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(2):
        for wave, label in make_loader(shuffle=False):
            nn.functional.cross_entropy(model(wave), label).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert torch.equal(trainer.parts.model.weight, model.weight)
    assert trainer.progress.step == 10


def test_a_seed_decides_the_order_of_a_loader_that_shuffles():
    weights = [trained(make_loader(), seed=seed).parts.model.weight for seed in (1, 1, 2)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_a_note_says_that_a_loader_resumes_slowly():
    notes = []
    trained(make_loader(), val=make_loader(), say=notes.append)
    assert len(notes) == 1
    assert "resume" in notes[0]


class Counts(Watcher):
    """Ends a run after its second validation."""

    num_seen = 0

    def after_validation(self, moment):
        self.num_seen += 1
        return "enough" if self.num_seen == 2 else None


def test_a_trainer_takes_validation_sets_a_goal_watchers_and_metrics():
    classification = pytest.importorskip("torchmetrics.classification")
    parts = {
        "val": {name: DataLoader(pairs(6), batch_size=4) for name in ("a", "b")},
        "watchers": {"counts": Counts()},
        "metrics": {"f1": classification.MulticlassF1Score(2)},
        "best": Goal("b.loss", False),
    }
    trainer = trained(make_loader(), epochs=5, **parts)
    assert {"a.loss", "b.loss", "a.f1", "b.f1"} <= set(trainer.val_means)
    assert {"wait", "forward", "backward"} <= set(trainer.spans_s)
    assert (trainer.progress.epoch, trainer.ended) == (2, "enough")


def test_a_loader_without_a_length_needs_a_number_of_batches():
    class Endless(IterableDataset):
        def __iter__(self):
            return ((torch.zeros(3), number % 2) for number in count())

    endless = DataLoader(Endless(), batch_size=4)
    with pytest.raises(ConfigError, match=r"C235.*in Python num_batches=1000"):
        trained(endless)
    assert trained(endless, num_batches=5).progress.step == 10
