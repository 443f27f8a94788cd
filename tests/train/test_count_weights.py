"""What counts weighs: any cut of a batch into passes and ranks learns what the whole batch does."""

import pytest
import torch
from torch import nn

from framework.contracts.training import Outcome
from framework.errors import ConfigError
from framework.precision.amp import AMP
from framework.precision.fp32 import FP32
from tests.fakes import CPU, make_data, make_model, make_trainer
from tests.parallel.launching import of_two_ranks
from tests.train.counted import (
    BATCH_SIZE,
    EPOCHS,
    half_labelled,
    learned_by_a_plain_loop,
    weights_of,
)


def trained(data=None, order=None, **parts):
    parts = {"epochs": EPOCHS, "report_every": 100, **parts}
    trainer = make_trainer(data or half_labelled(), BATCH_SIZE, order=order, **parts)
    trainer.fit()
    return trainer


@pytest.mark.parametrize("clip_norm", [None, 0.1], ids=["whole", "clipped"])
@pytest.mark.parametrize("accumulate", [1, 2, 4], ids=["one pass", "even", "uneven"])
def test_passes_learn_what_the_whole_batch_does(accumulate, clip_norm):
    trainer = trained(order={"accumulate": accumulate}, clip_norm=clip_norm)
    expected = learned_by_a_plain_loop(clip_norm)
    assert weights_of(trainer.parts.model) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("kind", ["ddp", "fsdp", "virtual", "uneven", "no count"])
def test_two_ranks_learn_what_one_does(kind, tmp_path_factory):
    expected = learned_by_a_plain_loop(data=make_data(24) if kind == "no count" else None)
    for rank in of_two_ranks("counted", tmp_path_factory):
        assert rank[kind] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_scaled_gradients_are_those_of_one_pass(dtype):
    taken = []
    for accumulate in (1, 4):
        precision = FP32(False, device=CPU) if dtype == "fp32" else AMP(dtype, device=CPU)
        data = {name: values.float() for name, values in half_labelled().items() if name == "x"}
        data["y"] = half_labelled()["y"]
        model = make_model(torch.float32)
        trained(data, {"accumulate": accumulate}, model=model, precision=precision)
        taken.append(weights_of(model))
    tolerance = 1e-5 if dtype == "fp32" else 0.02
    assert taken[1] == pytest.approx(taken[0], abs=tolerance)


class Tokens:
    """A mean over many more tokens than records, or of none."""

    def __init__(self, counts):
        self.counts = iter(counts)

    def __call__(self, model, batch):
        count = next(self.counts)
        losses = model(batch["x"]).square().sum(1)
        loss = losses.mean() if count else losses[:0].mean()
        return Outcome(loss, {}, count)

    def better(self, new, old):
        return new["loss"] < old["loss"]


class MaskedMean(nn.Module):
    """A mean over labels by a mask, with a weight of its own: 0 / 0 if none counts."""

    def __init__(self, whole, on_host):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.whole = whole
        self.on_host = on_host

    def forward(self, model, batch):
        mask = batch["y"] >= 0
        logits = self.scale * model(batch["x"])
        losses = nn.functional.cross_entropy(logits, batch["y"].clamp(min=0), reduction="none")
        count = mask.sum()
        loss = (losses * mask).sum() / (count.clamp(min=1) if self.whole else count)
        return Outcome(loss, {}, int(count) if self.on_host else count)

    better = Tokens.better


@pytest.mark.parametrize("on_host", [False, True], ids=["on the device", "on the host"])
def test_a_masked_mean_of_nothing_adds_no_gradient(on_host):
    taken = []
    for whole in (True, False):
        model, objective = make_model(), MaskedMean(whole, on_host)
        optimizer = torch.optim.SGD([*model.parameters(), objective.scale], lr=0.1)
        parts = {"model": model, "objective": objective, "optimizer": optimizer}
        trained(order={"accumulate": 4}, **parts)
        taken.append(weights_of(model) + objective.scale.tolist())
    assert taken[1] == taken[0]


def test_a_count_that_comes_and_goes_is_refused():
    with pytest.raises(ConfigError, match=r"C220\]: Outcome.count: is None, unlike one pass"):
        trained(make_data(20), {"accumulate": 2}, objective=Tokens([100, None]))


def test_sparse_gradients_are_scaled_too():
    taken = []
    for accumulate in (1, 2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(5, 3, sparse=True)).double()
        data = {"x": torch.arange(10) % 5, "y": torch.tensor([-100, 0, 1, 2, 0] * 2)}
        trained(data, {"accumulate": accumulate}, model=model, momentum=0.0)
        taken.append(weights_of(model))
    assert taken[1] == pytest.approx(taken[0])
