"""Modules that compute their activations again: the same numbers, less memory, and its cost."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from framework.errors import ConfigError
from framework.train.recompute import Recomputed, kept_bytes, recompute, recompute_cost
from tests.cli.command import losses, paceline
from tests.fakes import FakeClock, FakeSink, make_trainer
from tests.train.states import same, weights

DATA = {
    "x": torch.rand(24, 6, generator=torch.Generator().manual_seed(1)),
    "y": torch.arange(24) % 3,
    "index": torch.arange(24),
}


class Counting(nn.Module):
    """Scales by how many batches it has seen, which a pass that is repeated must not count."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x, *, factor):
        if self.training:
            self.count += 1
        return x * factor / (1 + self.count)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5)
        self.scale = Counting()

    def forward(self, x):
        return self.scale(self.drop(self.norm(self.first(x)).tanh()), factor=torch.tensor(3.0))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def net(*patterns):
    torch.manual_seed(0)
    model = Net()
    recompute(model, patterns)
    return model


def recomputed(model):
    return [name for name, module in model.named_modules() if isinstance(module, Recomputed)]


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["layers"], ["layers.0", "layers.1", "layers.2"]),
        (["layers.1", "layers.1.norm", "head"], ["layers.1", "head"]),
        (["*.scale"], ["layers.0.scale", "layers.1.scale", "layers.2.scale"]),
    ],
    ids=["list", "outermost", "stars"],
)
def test_the_outermost_modules_that_match_are_chosen_and_keep_their_names(patterns, names):
    model = net(*patterns)
    assert recomputed(model) == names
    assert model.state_dict().keys() == Net().state_dict().keys()


def test_a_pattern_without_a_module_names_those_of_the_model():
    with pytest.raises(ConfigError, match=r"C388\]: recompute = blocks: .*layers.*head"):
        net("blocks")


@pytest.mark.parametrize("patterns", [["layers"], ["layers.1.norm", "*.scale"], ["*.drop"]])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_dropout_batch_norm_and_counters_learn_the_same_bits(patterns, accumulate):
    def fitted(*own):
        model, sink = net(*own), FakeSink()
        torch.manual_seed(7)
        order = {"accumulate": accumulate}
        parts = {"val": None, "report_every": 1, "sinks": [sink], "order": order, "epochs": 2}
        trainer = make_trainer(DATA, 8, model=model, clock=FakeClock(), **parts)
        trainer.fit()
        return trainer, [report.means["loss"] for report in sink.of("train")]

    plain, losses = fitted()
    other, again = fitted(*patterns)
    assert again == losses
    assert same(weights(other), weights(plain))  # also running statistics and counters


def loss_of(model):
    return lambda: nn.functional.cross_entropy(model(DATA["x"]), DATA["y"])


def test_less_is_kept_for_backward_and_nothing_changes_in_evaluation():
    model, plain = net("layers"), net()
    # the head's product, log-softmax and labels, and of each block its inputs
    assert 0 < kept_bytes(model, loss_of(model)) < kept_bytes(plain, loss_of(plain)) / 2
    assert torch.equal(net("layers").eval()(DATA["x"]), net().eval()(DATA["x"]))


def test_the_cost_is_measured_with_and_without():
    model = net("layers")
    cost = recompute_cost(model, loss_of(model))
    assert cost["kept_bytes"] == kept_bytes(model, loss_of(model))
    assert cost["kept_bytes_without"] > 2 * cost["kept_bytes"]
    assert min(cost["pass_s"], cost["pass_s_without"]) > 0
    assert all(module.recomputes for module in model.layers)


SHORT = ("train", "max_steps=4", "report_every=1", "data.val=null", "limit=256")


@pytest.mark.parametrize(
    "words",
    [
        ["parallel=ddp", "parallel.num_processes=2", "accumulate=2"],
        ["parallel=fsdp", "parallel.num_processes=2", "parallel.unit_parameters=100"],
        ["parallel=virtual", "parallel.virtual_ranks=2"],
        pytest.param(
            ["compile=true", "limit=128"],
            marks=pytest.mark.skipif(not shutil.which("g++"), reason="needs a compiler"),
        ),
    ],
    ids=["ddp", "fsdp", "virtual", "compile"],
)
@pytest.mark.slow
def test_ranks_and_compiled_models_learn_the_same(words):
    for name, own in (("plain", []), ("less", ["recompute=[features]"])):
        done = paceline(*SHORT, *words, *own, f"hydra.run.dir={name}")
        assert done.code == 0, done.err
    assert "recompute: a pass of" in done.out
    plain = losses(Path("plain"))  # compiled, the kernels round at other places
    assert losses(Path("less")) == pytest.approx(plain, rel=1e-5 * ("compile=true" in words), abs=0)
