"""Which configurations can be captured as a CUDA graph."""

import pytest
import torch

from framework.config.graph_choice import fused, refusal

CONFIG = {
    "optim": {"fused": True},
    "parallel": {"_target_": "framework.parallel.none.NoParallel"},
    "accumulate": 1,
    "precision": {},
    "on_nan": "stop",
    "data": {"source": {"_target_": "framework.data.hdf5.hdf5_source"}},
}
CPU = torch.device("cpu")
CUDA = torch.device("cuda")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({}, None),
        ({"optim": {}}, "only a fused optimizer"),
        ({"accumulate": 2}, "several passes"),
        ({"on_nan": "skip"}, "on_nan=skip"),
        ({"precision": {"dtype": "fp16"}}, "fp16"),
        ({"data": {"source": {"_target_": "framework.data.dali.dali_source"}}}, "DALI"),
        ({"precision": {"dtype": "bf16"}}, None),
        ({"parallel": {"_target_": "framework.parallel.ddp.DistributedParallel"}}, "replicas"),
    ],
)
def test_what_is_not_captured_has_its_reason(change, why):
    found = refusal({**CONFIG, **change}, CUDA)
    assert found is None if why is None else why in found


def test_the_optimizer_is_fused_where_it_can_be_and_nobody_says_otherwise():
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
    assert refusal(CONFIG, CPU) == "cpu has no graphs"
