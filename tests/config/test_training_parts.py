"""What trains a model: built from a configuration, and tried before the first step."""

import errno
import os
from contextlib import ExitStack, closing
from itertools import count

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from framework.config import training_parts
from framework.config.assemble import Assembly
from framework.config.build import ModelTrial, check_fit, make_metrics, try_augment, try_metrics
from framework.config.training_parts import make_goal, make_trainer, make_watching, open_sinks
from framework.contracts.data import DRAW_KEYS
from framework.contracts.training import Outcome, Watcher
from framework.errors import ConfigError, DataError, UserCodeError
from framework.model.airbench import Whitening
from framework.model.digits_net import DigitsCNN
from framework.objective.classify import Classify
from framework.objective.own_loss import OwnLoss
from framework.run import group_table
from framework.sink.jsonl import JsonlSink
from framework.train.parameter_groups import parameter_groups
from framework.train.trainer import Trainer
from framework.train.watching import Goal
from framework.train.weights import Freeze, freeze_layers
from tests.cli.command import config_of
from tests.config.assembled import SYNTHETIC, assembled, parts_of
from tests.conftest import make_records, write_store
from tests.data.own_items import make_loader, pairs

SMALL_NET = ("model=airbench", "model.widths=[4,4]", "model.whiten_records=40")

# ------------------------------------------------------------------------------------------- models


def test_the_channels_of_a_pixel_lie_together_if_that_was_asked_for():
    model = parts_of("channels_last=true")[1].model
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_the_first_layer_starts_from_the_training_data_as_the_model_sees_it():
    with assembled(*SMALL_NET) as assembly:
        model = training_parts.training_parts(assembly).model
        records = assembly.augmenter(training=False)(assembly.train_source.sample(40), 0)
    other = Whitening(model.whiten.in_channels, 2, 40)
    other.start_from([records["image"]])
    assert torch.equal(model.whiten.weight, other.weight)


def test_a_teacher_is_built_with_the_facts_of_the_data():
    target = "_target_: framework.model.digits_net.DigitsCNN"
    teacher = f"{{{target}, in_channels: auto, num_classes: auto, width: 4}}"
    _, parts = parts_of("objective=distill", f"objective.teacher={teacher}")
    assert parts.objective.teacher.head.out_features == 10


# ----------------------------------------------------------------------------- optimizers and rates


def test_the_learning_rate_follows_the_batch_size():
    words = ("optim.lr=0.1", "optim.scaling=linear", "optim.reference_batch_size=64")
    optimizer = parts_of("batch_size=128", *words)[1].optimizer
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_groups_of_parameters_have_rates_of_their_own():
    group = "+optim.groups.norms={match: '*.norm?.bias', lr_factor: 64, weight_decay: 0}"
    rest, norms = parts_of(*SMALL_NET, "optim.lr=0.1", group)[1].optimizer.param_groups
    assert (rest["lr"], norms["lr"]) == (0.1, pytest.approx(6.4))
    assert (rest["weight_decay"], norms["weight_decay"]) == (5e-4, 0)
    assert len(norms["params"]) == 4


def test_layers_freeze_before_the_first_step_and_rates_fall_with_the_depth():
    words = ("optim.layer_decay=0.5", "optim.no_decay=[norm]", "freeze={features.0: 3}")
    _, parts = parts_of("optim.lr=0.1", *words)
    names = [group["name"] for group in parts.optimizer.param_groups]
    assert names[:2] == ["all, block 0", "all, block 0, no decay"]
    rates = [group["lr"] for group in parts.optimizer.param_groups[::2]]
    assert rates == pytest.approx([0.0125, 0.025, 0.05, 0.1])
    frozen = [name for name, own in parts.model.named_parameters() if not own.requires_grad]
    assert frozen
    assert all(name.startswith("features.0.") for name in frozen)
    assert parts.freeze.steps == {3}


def table(freeze=None, kind=torch.optim.AdamW, **block):
    """Return the words of the table of a small model's parameters, or None."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    layers = None
    if freeze is not None:
        layers = Freeze(model, freeze_layers(model, freeze), freeze, lambda wrapped: wrapped)
    params = parameter_groups(model, {"lr": 0.1, **block}) if block else [*model.parameters()]
    text = group_table(model, kind(params, lr=0.1), layers)
    return text and [line.split() for line in text.splitlines()]


def test_a_table_has_a_line_for_each_group_and_each_frozen_layer():
    assert table() is None
    groups = {"head": {"match": "1", "lr": 0.5, "weight_decay": 0.25}}
    assert table(groups=groups) == [
        ["group", "tensors", "parameters", "lr", "weight", "decay"],
        ["others", "2", "9", "0.1", "0.01"],
        ["head", "2", "4", "0.5", "0.25"],
    ]
    assert table(freeze={"0.weight": 7, "0.bias": None}) == [
        ["group", "tensors", "parameters", "lr", "weight", "decay", "thaws", "at"],
        ["all", "1", "6", "0.1", "0.01", "step", "7"],
        ["all", "1", "3", "0.1", "0.01", "never"],
        ["all", "2", "4", "0.1", "0.01"],
    ]
    without_decay = table(kind=torch.optim.Rprop, groups=[{"match": "1"}])
    assert without_decay[0] == ["group", "tensors", "parameters", "lr"]


class ComplexModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))


def test_an_optimizer_that_cannot_be_fused_runs_kernel_by_kernel_with_a_note(monkeypatch):
    built = (ComplexModel(), {}, ModelTrial({"loss": 1.0}, None))
    monkeypatch.setattr("framework.config.training_parts._model", lambda *_: built)
    notes = []
    with assembled("optim=adam") as assembly:
        assembly.captures = True
        assembly.say = notes.append
        parts = training_parts.training_parts(assembly)
    assert not parts.optimizer.defaults["fused"]
    assert parts.recorder is None
    what = "no fused optimizer takes complex parameters"
    assert notes == [f"note: cuda_graph=true: {what}; steps run kernel by kernel"]


# --------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["model.in_channels=2"], r"C155\]: model\.in_channels = 2"),
        (["augment=none"], r"C118\]: .*pixels are still bytes: augment="),
        (["freeze=[stem]"], r"C312\]: .*the model has features, head"),
        (["optim.no_decay=[nrom]"], r"C310\]: .*'nrom' matches no parameter"),
        (["optim.groups=[{match: heads}]"], r"C147\]: optim\.groups\.0\.match = heads"),
        (["schedule=plateau"], r"C314\]: .*no validation data"),
        (["objective.class_weights=balance"], r"C316\]: objective\.class_weights = balance"),
        (["objective=distill"], r"C319\]: objective\.teacher = None"),
        (
            ["augment=crop_flip", "augment.dtype=bfloat16"],
            r"choose precision=amp, or leave out augment\.dtype$",
        ),
    ],
    ids=lambda value: value[-1] if isinstance(value, list) else "",
)
def test_parts_that_do_not_fit_are_refused_before_the_first_step(words, line):
    with pytest.raises(ConfigError, match=line):
        parts_of(*words)


BATCH_NORM = ("model=resnet9", "model.width=4", "data.source.num_records=9")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["batch_size=4"], r"last = short: .* 1 record,.*; set last=drop, or last=wrap$"),
        (["batch_size=4", "accumulate=4", "last=drop"], r"data.train, batch_size = 4: .* 1 record"),
    ],
    ids=["the last batch", "every pass"],
)
def test_a_single_record_is_refused_before_the_first_step(words, line, tmp_path):
    with assembled(*BATCH_NORM, *words) as assembly, pytest.raises(ConfigError, match=line):
        training_parts.training_parts(assembly, tmp_path)


@pytest.mark.parametrize("word", ["last=drop", "max_steps=2", "batch_size=5"])
def test_a_trial_of_what_comes_changes_no_generator_and_no_buffer(word, tmp_path):
    states, buffers = [], []
    for run_dir in (None, tmp_path):
        with assembled(*BATCH_NORM, "batch_size=4", "epochs=1", word) as assembly:
            model = training_parts.training_parts(assembly, run_dir).model
        assert model.training
        states.append(torch.get_rng_state())
        buffers.append(torch.cat([buffer.flatten().float() for buffer in model.buffers()]))
    assert torch.equal(*states)
    assert torch.equal(*buffers)


# --------------------------------------------------------------------------- trials of the parts

CONFIG = {"model": {"_target_": "framework.model.digits_net.DigitsCNN"}}


def records(channels=1, **fields):
    image = torch.zeros(2, channels, 8, 8)
    return {"index": torch.arange(2), "image": image, "label": torch.tensor([0, 9]), **fields}


def test_a_trial_gives_the_figures_of_a_validation_and_changes_no_model():
    model = DigitsCNN(1, 10, 2)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trial = check_fit(model, Classify("image", "label", 0.0), records(), CONFIG, ())
    assert list(trial.means) == ["loss", "accuracy"]
    assert trial.predictions[0].shape == (2, 10)
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("model", "objective"),
    [
        (DigitsCNN(3, 10, 2), Classify("image", "label", 0.0)),
        (DigitsCNN(1, 10, 2), Classify("picture", "label", 0.0)),
        (DigitsCNN(1, 10, 2), Classify("label", "image", 0.0)),
    ],
    ids=["channels", "no such field", "the wrong way round"],
)
def test_a_model_that_does_not_fit_the_data_is_refused_with_the_shapes(model, objective):
    words = r"^error\[C118\]: model = framework.model.*: does not fit the data's"
    with pytest.raises(ConfigError, match=words) as caught:
        check_fit(model, objective, records(), CONFIG, ())
    assert "image (1, 8, 8), label ()" in str(caught.value)
    assert "set the model's keys" in str(caught.value)


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(Classify("image", "label", 0.0), id="classify"),
        pytest.param(OwnLoss("image", "label", {"nll": nn.NLLLoss()}), id="a loss of torch"),
    ],
)
def test_a_model_of_several_outputs_needs_a_loss_that_takes_them(objective):
    class Net(DigitsCNN):
        def forward(self, image):
            return super().forward(image), image

    with pytest.raises(ConfigError, match=r"C118.*tuple.*; a loss of your own in objective=loss"):
        check_fit(Net(1, 10, 2), objective, records(), CONFIG, ())


def test_a_label_of_no_class_of_the_model_names_its_record():
    with pytest.raises(DataError, match=r"D195.*data.train, record 1: has 9 as label"):
        check_fit(DigitsCNN(1, 3, 2), Classify("image", "label", 0.0), records(), CONFIG, ())


def test_a_loss_that_compares_records_with_each_other_is_refused():
    class Broadcast:
        def __call__(self, model, batch):
            loss = nn.functional.mse_loss(model(batch["image"]), batch["label"].float())
            return Outcome(loss, {}, len(batch["label"]))

    with pytest.raises(UserCodeError, match=r"Broadcast.*UserWarning: Using a target size"):
        check_fit(DigitsCNN(1, 1, 2), Broadcast(), records(), CONFIG, ())
    loss = OwnLoss("image", "other", {"mse": nn.MSELoss()})
    with pytest.raises(ConfigError, match=r"C118.*UserWarning: Using a target size"):
        check_fit(DigitsCNN(1, 10, 2), loss, records(other=torch.zeros(2, 1)), CONFIG, ())


class Flipper:
    """An augmentation that draws, and needs an image of one channel."""

    num_draws = 1

    def __call__(self, batch, draws):
        assert draws is not None
        return {**batch, "image": batch["image"].expand(-1, 3, -1, -1)}


class Torchs:
    """An augmentation whose error comes from torch itself."""

    num_draws = 1
    __call__ = staticmethod(torch.Tensor.expand)


def test_an_augmentation_is_tried_as_in_training():
    config = {"augment": {"_target_": "mine.Flipper"}, "seed": 0}
    try_augment(config, Flipper(), records(), ())
    with pytest.raises(ConfigError, match=r"C118.*augment = mine.Flipper.*image \(2, 8, 8\)"):
        try_augment(config, Torchs(), records(channels=2), ())


# ----------------------------------------------------------------------------- changes of batches


def test_random_changes_depend_on_the_keys_of_a_batch_which_augments_do_not_see():
    with assembled("augment=random_erasing", "augment.probability=1.0") as assembly:
        augment = assembly.augmenter(training=True)
        batch = assembly.train_source.sample(4)
        once = augment(batch, 1)
        assert torch.equal(augment({**batch, DRAW_KEYS: batch["index"]}, 1)["image"], once["image"])
        again = augment({**batch, DRAW_KEYS: batch["index"] + 4}, 1)
    assert again.keys() == once.keys()
    assert not torch.equal(again["image"], once["image"])


# -------------------------------------------------------------------------------------------- files


def test_a_sink_that_cannot_be_closed_does_not_end_the_run(tmp_path, monkeypatch):
    def fail(sink):
        sink._file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JsonlSink, "close", fail)
    with assembled("sink=[jsonl]") as assembly, ExitStack() as stack:
        trainer = Trainer(training_parts.training_parts(assembly))
        assert len(open_sinks(stack, assembly, trainer, tmp_path)) == 1


# ---- metrics, goals and watchers


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
        training_parts.training_parts(assembly, tmp_path)
    with validated("search_metric=acuracy", "data.val=null") as assembly:
        assert training_parts.training_parts(assembly, tmp_path).val is None


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
    assert {"wait", "forward", "backward"} <= set(trainer.spans.whole)
    assert (trainer.progress.epoch, trainer.ended) == (2, "enough")


def test_a_loader_without_a_length_needs_a_number_of_batches():
    class Endless(IterableDataset):
        def __iter__(self):
            return ((torch.zeros(3), number % 2) for number in count())

    endless = DataLoader(Endless(), batch_size=4)
    with pytest.raises(ConfigError, match=r"C235.*in Python num_batches=1000"):
        trained(endless)
    assert trained(endless, num_batches=5).progress.step == 10


# ------------------------------------------------------------------------------ parts and phases

IN_PARTS = "optim.parts={body: {match: features, lr: 0.5}, head: {match: head, no_decay: [bias]}}"
PHASES = "+objective._target_=tests.train.phased.InTurn"
IN_TURN = ("objective=null", PHASES, "allow_targets=[tests]")


def phased(*words):
    """Return the order of the phases of a run that has trained two steps, in turn."""
    if not any(word.startswith("optim.parts") for word in words):
        words = (IN_PARTS, *words)
    config = config_of(*SYNTHETIC, "data.val=null", "max_steps=2", *IN_TURN, *words)
    with closing(Assembly(config, ("tests.",))) as assembly:
        parts = training_parts.training_parts(assembly)
        weights = list(parts.model.parameters())
        before = [own.clone() for own in weights]
        Trainer(parts).fit()
        for own, old in zip(weights, before, strict=True):
            assert torch.equal(own, old) is not own.requires_grad
        return list(parts.phases)


def test_parts_of_a_model_have_optimizers_of_their_own_and_all_step_together():
    words = IN_PARTS.replace("lr: 0.5", "_target_: torch.optim.AdamW")
    assembly, parts = parts_of(words, "optim.lr=0.2")
    kinds = {name: type(own) for name, own in parts.optimizer.parts.items()}
    assert kinds == {"body": torch.optim.AdamW, "head": torch.optim.SGD}
    groups = [(own["name"], own["lr"], own["part"]) for own in parts.optimizer.param_groups]
    assert groups[0] == ("body", 0.001, "body")
    assert groups[1:] == [("head", 0.2, "head"), ("head, no decay", 0.2, "head")]
    assert parts.phases == {}
    assert assembly.graph_refusal is not None


def test_muon_is_for_the_matrices_of_a_model():
    parts = parts_of("optim=muon", "optim.no_decay=[bias]")[1]
    names = [own["name"] for own in parts.optimizer.param_groups]
    assert names == ["all, matrices", "all, no matrices", "all, no decay, no matrices"]


def test_an_objective_with_phases_trains_its_parts_in_turn():
    assert phased() == ["body", "head"]
    assert phased("freeze={features.0: 1}") == ["body", "head"]  # it has thawed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param(["on_nan=skip"], "on_nan = skip", id="on_nan"),
        pytest.param(["cuda_graph=true"], "cuda_graph = true", id="cuda_graph"),
        pytest.param(["parallel=dp"], "parallel = .*copies the model", id="dp"),
        pytest.param(["optim.parts=null"], "must name each of optim.parts.*none", id="none"),
        pytest.param(["optim.parts={body: {match: features}}"], "these are: body", id="too few"),
        pytest.param(
            ["optim.parts={body: {match: features.0}, head: {match: head}}"],
            "lacks features.1.* which no phase would train",
            id="a rest",
        ),
    ],
)
def test_phases_that_would_not_train_everything_as_said_are_refused(words, message):
    with pytest.raises(ConfigError, match=f"C363.*{message}"):
        phased(*words)


def test_what_no_phase_trains_may_be_frozen():
    parts = "optim.parts={body: {match: features.0}, head: {match: head}}"
    assert phased(parts, "freeze=[features.1,features.2]") == ["body", "head"]
