import pytest
import torch
from torch import nn

from framework.precision.fp32 import FP32

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def restore():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_tf32_is_torch_s_own_switch(tf32, precision):
    FP32(tf32, device=CPU)
    assert torch.get_float32_matmul_precision() == precision
    assert (
        torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == tf32
    )  # convolutions, products: both can be read


def test_what_is_computed_stays_float32():
    model = nn.Linear(2, 2)
    with FP32(tf32=False, device=CPU).autocast():
        assert model(torch.ones(1, 2)).dtype == torch.float32


@pytest.mark.parametrize(("clip_norm", "moved"), [(None, 5.0), (10.0, 5.0), (1.0, 1.0)])
def test_a_step_clips_and_moves_the_weights(clip_norm, moved):
    weight = nn.Parameter(torch.zeros(2))
    optimizer, precision = torch.optim.SGD([weight], lr=1.0), FP32(tf32=False, device=CPU)
    precision.backward((weight * torch.tensor([3.0, 4.0])).sum())
    assert precision.step(optimizer, clip_norm)
    assert float(weight.detach().norm()) == pytest.approx(moved, rel=1e-5)
