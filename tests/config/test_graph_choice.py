"""Which configurations can be captured as a CUDA graph."""

from types import SimpleNamespace

import pytest
import torch

from framework.config.graph_choice import fused, graph_refusal
from framework.data.dali import DALISource
from framework.data.source import StoreSource
from framework.parallel.ddp import DistributedParallel
from framework.parallel.none import NoParallel

CONFIG = {
    "optim": {"_target_": "torch.optim.SGD", "lr": 0.1},
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
