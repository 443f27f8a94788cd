import io
import math

import pytest
import torch
from torch import nn

from framework.precision import amp, fp32
from framework.train.step import clipping

CPU = torch.device("cpu")
KINDS = {
    "fp32": lambda: fp32.FP32(tf32=False, device=CPU),
    "bf16": lambda: amp.AMP("bf16", device=CPU),
    "fp16": lambda: amp.AMP("fp16", device=CPU),
}


@pytest.fixture(params=KINDS)
def make(request):
    before = torch.get_float32_matmul_precision()
    yield KINDS[request.param]
    torch.set_float32_matmul_precision(before)


def weight_of(*start):
    weight = nn.Parameter(torch.tensor(start))
    return weight, torch.optim.SGD([weight], lr=1.0)


def test_a_model_is_computed_inside_autocast_and_its_weights_stay_float32(make):
    precision, model = make(), nn.Linear(4, 4)
    for _ in range(2):
        with precision.autocast():
            loss = model(torch.ones(2, 4)).float().square().mean()
        precision.backward(loss)
    for tensor in model.parameters():
        assert tensor.dtype == tensor.grad.dtype == torch.float32
        assert torch.isfinite(tensor.grad).all()


def test_a_step_is_by_the_gradient_of_the_loss_whatever_it_was_scaled_by(make):
    precision, (weight, optimizer) = make(), weight_of(0.0, 0.0)
    precision.backward((weight * torch.tensor([3.0, 4.0])).sum())
    assert precision.step(optimizer, None) is True
    assert weight.tolist() == [-3.0, -4.0]


@pytest.mark.parametrize(("clip_norm", "length"), [(0.01, 0.01), (2.5, 2.5), (100.0, 5.0)])
def test_the_norm_of_all_passes_is_clipped_after_unscaling(make, clip_norm, length):
    precision, (weight, optimizer) = make(), weight_of(0.0, 0.0)
    for part in ([3.0, 0.0], [0.0, 4.0]):
        precision.backward((weight * torch.tensor(part)).sum())
    precision.step(optimizer, clipping(nn.Module(), optimizer, clip_norm))
    expected = [-0.6 * length, -0.8 * length]
    assert weight.tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_a_step_says_whether_the_weights_moved(make, clip_norm):
    precision, (weight, optimizer) = make(), weight_of(1.0)
    for factor in (1.0, 1e35, 1.0, 1e35, 1.0):
        nn.init.ones_(weight)
        optimizer.zero_grad()
        precision.backward((weight * factor).sum())
        clip = clipping(nn.Module(), optimizer, clip_norm)
        assert precision.step(optimizer, clip) is (weight.item() != 1.0)
        assert math.isfinite(weight.item())


def test_the_state_is_plain_and_a_resumed_precision_scales_as_the_old_one_did(make):
    precision, (weight, optimizer) = make(), weight_of(1.0)
    precision.backward((weight * 1e35).sum())
    precision.step(optimizer, None)
    file = io.BytesIO()
    torch.save(precision.state_dict(), file)
    file.seek(0)
    resumed = make()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert resumed.state_dict() == precision.state_dict()
    optimizer.zero_grad()
    precision.backward(weight.sum())
    first = weight.grad.clone()
    resumed.backward(weight.sum())
    assert torch.equal(weight.grad, 2 * first)
