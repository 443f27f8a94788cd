"""What trains: built from a configuration, and tried before the first step."""

from contextlib import closing

import pytest
import torch
from torch import nn

from framework.config.assemble import assemble
from framework.config.training_parts import training_parts
from framework.errors import ConfigError
from tests.commands.tune.test_candidate import config_of

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


def test_without_a_run_directory_nothing_is_saved():
    with assembled() as assembly:
        assert training_parts(assembly).checkpoints is None


def test_a_model_that_does_not_fit_is_refused_before_it_is_wrapped():
    with assembled("model.in_channels=2") as assembly, pytest.raises(ConfigError, match="C1"):
        training_parts(assembly)
