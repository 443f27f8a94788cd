"""What trains: built from a configuration, and tried before the first step."""

import errno
import os
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest
import torch
from torch import nn

from framework.config.assemble import Assembly, assemble
from framework.config.preflight import ModelTrial
from framework.config.training_parts import open_sinks, training_parts
from framework.contracts.data import DRAW_KEYS
from framework.errors import ConfigError
from framework.model.airbench import Whitening
from framework.sink.jsonl import JsonlSink
from framework.train.trainer import Trainer
from tests.commands.tune.test_candidate import config_of
from tests.fakes import FakeSink

TRIAL = ModelTrial({"loss": 1.0}, None)
SYNTHETIC = ("data=synthetic", "data.val=null", "prepare=null", "workers.num=0")


def assembled(*words):
    return closing(assemble(config_of(*SYNTHETIC, *words), ()))


def test_a_pixel_s_channels_lie_together_if_that_was_asked_for():
    with assembled("channels_last=true") as assembly:
        model = training_parts(assembly).model
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    assert weights
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def test_the_learning_rate_follows_the_batch_size():
    words = ("optim.lr=0.1", "optim.scaling=linear", "optim.reference_batch_size=64")
    with assembled("batch_size=128", *words) as assembly:
        optimizer = training_parts(assembly).optimizer
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2)


def test_a_sink_that_cannot_be_closed_does_not_end_the_run(tmp_path, monkeypatch):
    def fail(sink):
        sink._file.close()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(JsonlSink, "close", fail)
    with assembled("sink=[jsonl]") as assembly, ExitStack() as stack:
        trainer = Trainer(training_parts(assembly))
        assert len(open_sinks(stack, assembly, trainer, tmp_path)) == 1


def test_a_model_that_does_not_fit_is_refused_before_it_is_wrapped():
    with assembled("model.in_channels=2") as assembly, pytest.raises(ConfigError, match="C1"):
        training_parts(assembly)


class ComplexModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64))


def test_an_optimizer_that_cannot_be_fused_runs_kernel_by_kernel_with_a_note(monkeypatch):
    monkeypatch.setattr(Assembly, "captures", True)
    built = (ComplexModel(), {}, TRIAL)
    monkeypatch.setattr("framework.config.training_parts._model", lambda *_: built)
    notes = []
    with assembled("optim=adam") as assembly:
        parts = training_parts(replace(assembly, say=notes.append))
    assert not parts.optimizer.defaults["fused"]
    assert parts.recorder is None
    what = "no fused optimizer takes complex parameters"
    assert notes == [f"note: cuda_graph=true: {what}; steps run kernel by kernel"]


SMALL_NET = ("model=airbench", "model.widths=[4,4]", "model.whiten_records=40")


def test_the_first_layer_starts_from_the_training_data_as_the_model_sees_it():
    with assembled(*SMALL_NET) as assembly:
        model = training_parts(assembly).model
        records = assembly.augmenter(training=False)(assembly.train_source.sample(40), 0)
    other = Whitening(model.whiten.in_channels, 2, 40)
    other.start_from([records["image"]])
    assert torch.equal(model.whiten.weight, other.weight)


def test_groups_of_parameters_have_rates_of_their_own():
    group = "+optim.groups.norms={match: '*.norm?.bias', lr_factor: 64, weight_decay: 0}"
    with assembled(*SMALL_NET, "optim.lr=0.1", group) as assembly:
        optimizer = training_parts(assembly).optimizer
    rest, norms = optimizer.param_groups
    assert (rest["lr"], norms["lr"]) == (0.1, pytest.approx(6.4))
    assert (rest["weight_decay"], norms["weight_decay"]) == (5e-4, 0)
    assert len(norms["params"]) == 4


def test_a_group_without_parameters_is_refused():
    group = "+optim.groups.norms={match: bn.bias}"
    with assembled(*SMALL_NET, group) as assembly, pytest.raises(ConfigError, match="C147"):
        training_parts(assembly)


def test_layers_freeze_before_the_first_step_and_rates_fall_with_the_depth():
    words = ("optim.layer_decay=0.5", "optim.no_decay=[norm]", "freeze={features.0: 3}")
    with assembled("optim.lr=0.1", *words) as assembly:
        parts = training_parts(assembly)
    names = [group["name"] for group in parts.optimizer.param_groups]
    assert names[:2] == ["all, block 0", "all, block 0, no decay"]
    assert [group["lr"] for group in parts.optimizer.param_groups[::2]] == [
        pytest.approx(0.1 * 0.5**number) for number in (3, 2, 1, 0)
    ]
    frozen = [name for name, own in parts.model.named_parameters() if not own.requires_grad]
    assert frozen
    assert all(name.startswith("features.0.") for name in frozen)
    assert parts.freeze.is_due(3)


def test_a_schedule_that_follows_validation_needs_some():
    with assembled("schedule=plateau") as assembly, pytest.raises(ConfigError, match="C314"):
        training_parts(assembly)


def test_a_teacher_is_built_with_the_facts_of_the_data():
    teacher = "{_target_: paceline_examples.digits_net.DigitsCNN, in_channels: auto, "
    words = ("objective=distill", f"objective.teacher={teacher}num_classes: auto, width: 4}}")
    with assembled(*words) as assembly:
        assert training_parts(assembly).objective.teacher.head.out_features == 10


def losses(dtype):
    words = ("augment=crop_flip", f"augment.dtype={dtype}", "max_steps=3", "report_every=1")
    seen = FakeSink()
    with assembled("precision=amp", "model=resnet9", "model.width=4", *words) as assembly:
        Trainer(training_parts(assembly)).fit([seen])
    return [report.means["loss"] for report in seen.of("train")]


def test_pixels_in_sixteen_bits_learn_the_same_in_mixed_precision():
    assert len(losses("bfloat16")) == 3
    assert losses("bfloat16") == losses("float32")


def test_pixels_in_sixteen_bits_need_mixed_precision():
    words = ("augment=crop_flip", "augment.dtype=bfloat16")
    with (
        assembled(*words) as assembly,
        pytest.raises(ConfigError, match=r"choose precision=amp, or leave out augment.dtype$"),
    ):
        training_parts(assembly)


def test_random_changes_depend_on_the_keys_of_a_batch_which_augments_do_not_see():
    with assembled("augment=random_erasing", "augment.probability=1.0") as assembly:
        augment = assembly.augmenter(training=True)
        batch = assembly.train_source.sample(4)
        once = augment(batch, 1)
        assert torch.equal(augment({**batch, DRAW_KEYS: batch["index"]}, 1)["image"], once["image"])
        again = augment({**batch, DRAW_KEYS: batch["index"] + 4}, 1)
    assert again.keys() == once.keys()
    assert not torch.equal(again["image"], once["image"])
