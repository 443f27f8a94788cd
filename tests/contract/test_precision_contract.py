"""The promises of ``contracts.Precision``, kept by every implementation."""

import io
import math

import pytest
import torch
from torch import nn

from framework.precision.amp import AMP
from framework.precision.fp32 import FP32

CPU = torch.device("cpu")
KINDS = {
    "fp32": lambda: FP32(tf32=False, device=CPU),
    "bf16": lambda: AMP("bf16", device=CPU),
    "fp16": lambda: AMP("fp16", device=CPU),
}


@pytest.fixture(params=KINDS)
def make(request):
    before = torch.get_float32_matmul_precision()
    yield KINDS[request.param]
    torch.set_float32_matmul_precision(before)


def weight_of(*start):
    weight = nn.Parameter(torch.tensor(start))
    return weight, torch.optim.SGD([weight], lr=1.0)


def test_a_model_is_computed_inside_autocast_as_often_as_wanted(make):
    precision, model = make(), nn.Linear(4, 4)
    for _ in range(2):
        with precision.autocast():
            loss = model(torch.ones(2, 4)).float().square().mean()
        precision.backward(loss)
    assert torch.isfinite(model.weight.grad).all()


def test_weights_and_gradients_stay_float32(make):
    precision, model = make(), nn.Linear(4, 4)
    with precision.autocast():
        loss = model(torch.ones(2, 4)).float().mean()
    precision.backward(loss)
    assert {(tensor.dtype, tensor.grad.dtype) for tensor in model.parameters()} == {
        (torch.float32, torch.float32)
    }


def test_a_step_is_by_the_gradient_of_the_loss_whatever_it_was_scaled_by(make):
    precision, (weight, optimizer) = make(), weight_of(0.0, 0.0)
    precision.backward((weight * torch.tensor([3.0, 4.0])).sum())
    assert precision.step(optimizer, None) is True
    assert weight.tolist() == [-3.0, -4.0]


@pytest.mark.parametrize(
    ("clip_norm", "length"), [(0.01, 0.01), (1.0, 1.0), (5.5, 5.0), (100.0, 5.0)]
)
def test_the_norm_is_clipped_after_unscaling_and_before_the_step(make, clip_norm, length):
    precision, (weight, optimizer) = make(), weight_of(0.0, 0.0)
    precision.backward((weight * torch.tensor([3.0, 4.0])).sum())
    precision.step(optimizer, clip_norm)
    assert float(weight.detach().norm()) == pytest.approx(length, rel=1e-4)


def test_gradients_of_several_passes_are_clipped_as_one(make):
    precision, (weight, optimizer) = make(), weight_of(0.0, 0.0)
    for part in ([3.0, 0.0], [0.0, 4.0]):
        precision.backward((weight * torch.tensor(part)).sum())
    precision.step(optimizer, 2.5)
    assert weight.tolist() == pytest.approx([-1.5, -2.0], rel=1e-4)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_false_means_that_the_weights_did_not_move_and_true_that_they_did(make, clip_norm):
    precision, (weight, optimizer) = make(), weight_of(1.0)
    for factor in (1.0, 1e35, 1.0, 1e35, 1.0):
        nn.init.ones_(weight)
        optimizer.zero_grad()
        precision.backward((weight * factor).sum())
        assert precision.step(optimizer, clip_norm) is (weight.item() != 1.0)
        assert math.isfinite(weight.item())


def test_the_state_is_plain_and_restores_the_precision(make):
    precision, (weight, optimizer) = make(), weight_of(1.0)
    precision.backward((weight * 1e35).sum())
    precision.step(optimizer, None)
    file = io.BytesIO()
    torch.save(precision.state_dict(), file)
    file.seek(0)
    resumed = make()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.state_dict() == precision.state_dict()


def test_a_resumed_precision_scales_as_the_old_one_did(make):
    precision, resumed = make(), make()
    weight, _ = weight_of(1.0)
    resumed.load_state_dict(precision.state_dict())
    precision.backward(weight.sum())
    first = weight.grad.clone()
    resumed.backward(weight.sum())
    assert torch.equal(weight.grad, 2 * first)
