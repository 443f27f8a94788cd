"""Which configurations can be captured as a CUDA graph."""

from types import SimpleNamespace

import pytest
import torch

from framework.config.graph_choice import fused, fuses_by_default, graph_refusal
from framework.data.dali import DALISource
from framework.data.source import StoreSource
from framework.parallel.ddp import DistributedParallel
from framework.parallel.none import NoParallel

CONFIG = {
    "optim": {"_target_": "torch.optim.SGD", "lr": 0.1},
    "schedule": {"_target_": "framework.schedule.constant.Constant"},
    "accumulate": 1,
    "precision": {},
    "on_nan": "stop",
}
CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def refusal(change=None, parallel=NoParallel, source=StoreSource, device=CUDA):
    ranks = SimpleNamespace(device=device, graph_refusal=parallel.graph_refusal)
    return graph_refusal({**CONFIG, **(change or {})}, ranks, source)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"optim": {"_target_": "torch.optim.LBFGS"}}, "only a fused optimizer"),
        ({"accumulate": 2}, "several passes"),
        ({"on_nan": "skip"}, "on_nan=skip"),
        ({"schedule": {"_target_": "torch.optim.lr_scheduler.StepLR"}}, "a scheduler of torch"),
        ({"precision": {"dtype": "fp16"}}, "fp16"),
        ({"precision": {"dtype": "bf16"}}, None),
    ],
)
def test_a_configuration_that_is_not_captured_has_its_reason(change, why):
    reason = refusal(change)
    assert reason is None if why is None else why in reason


def test_parts_refuse_for_themselves():
    assert "replicas" in refusal(parallel=DistributedParallel)
    assert "DALI" in refusal(source=DALISource)


def test_the_optimizer_is_fused_if_it_can_be_and_nothing_else_is_typed():
    assert fused({"_target_": "torch.optim.SGD", "lr": 0.1}) == {
        "_target_": "torch.optim.SGD",
        "lr": 0.1,
        "fused": True,
    }
    for said in (
        {"_target_": "torch.optim.AdamW", "fused": False},
        {"_target_": "torch.optim.SGD", "foreach": True},
        {"_target_": "torch.optim.LBFGS"},
    ):
        assert fused(said) == said


def test_a_host_has_no_graphs():
    assert refusal(device=CPU) == "cpu has no graphs"


class Weight:
    def __init__(self, is_cuda=True, floating=True):
        self.is_cuda, self._floating = is_cuda, floating

    def is_floating_point(self):
        return self._floating


class Model:
    def __init__(self, *weights, sparse=False):
        self.weights, self.sparse = weights, sparse

    def parameters(self):
        return iter(self.weights)

    def modules(self):
        return [self]


SHARDED = Weight()
SHARDED.full_tensor = None


@pytest.mark.parametrize(
    ("model", "target", "fuses"),
    [
        (Model(Weight()), "torch.optim.SGD", True),
        (Model(Weight(is_cuda=False)), "torch.optim.SGD", False),
        (Model(Weight(), Weight(floating=False)), "torch.optim.SGD", False),
        (Model(Weight(), sparse=True), "torch.optim.SGD", False),
        (Model(Weight(), SHARDED), "torch.optim.AdamW", False),
        (Model(Weight()), "mine.SGD", False),
    ],
)
def test_on_a_gpu_torchs_optimizers_update_all_weights_in_one_kernel(model, target, fuses):
    assert fuses_by_default({"_target_": target}, model) == fuses
