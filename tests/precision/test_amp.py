import copy

import pytest
import torch
from torch import nn

from framework.contracts.parallel import ScalesLoss
from framework.errors import ConfigError
from framework.precision.amp import AMP
from framework.precision.fp32 import FP32

CPU = torch.device("cpu")
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.5),
    "fused adam": lambda parameters: torch.optim.Adam(parameters, lr=0.5, fused=True),
    "fused sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, fused=True),
}


def one_weight():
    weight = nn.Parameter(torch.ones(2))
    return weight, torch.optim.SGD([weight], lr=1.0)


def test_bf16_computes_products_in_16_bits_and_keeps_weights_and_gradients_in_32():
    model, precision = nn.Linear(4, 4), AMP("bf16", device=CPU)
    with precision.autocast():
        out = model(torch.randn(2, 4))
    precision.backward(out.float().sum())
    assert (out.dtype, model.weight.dtype, model.weight.grad.dtype) == (
        torch.bfloat16,
        torch.float32,
        torch.float32,
    )


def test_fp16_computes_products_in_fp16():
    with AMP("fp16", device=CPU).autocast():
        assert nn.Linear(4, 4)(torch.randn(2, 4)).dtype == torch.float16


def test_autocast_can_be_entered_again_and_again():
    precision, model = AMP("bf16", device=CPU), nn.Linear(2, 2)
    for _ in range(3):
        with precision.autocast():
            assert model(torch.ones(1, 2)).dtype == torch.bfloat16
        assert model(torch.ones(1, 2)).dtype == torch.float32


def test_bf16_needs_no_scale():
    (weight, optimizer), precision = one_weight(), AMP("bf16", device=CPU)
    precision.backward(weight.sum())
    assert weight.grad.tolist() == [1.0, 1.0]
    assert precision.step(optimizer, None)
    assert precision.state_dict() == {}


def test_the_factor_on_the_loss_can_be_asked():
    precisions = [AMP(dtype, device=torch.device("cpu")) for dtype in ("bf16", "fp16")]
    assert all(isinstance(precision, ScalesLoss) for precision in precisions)
    bf16, fp16 = (precision.loss_scale for precision in precisions)
    assert bf16 == 1.0
    assert fp16 > 1.0
    assert not isinstance(FP32(tf32=False, device=torch.device("cpu")), ScalesLoss)


def test_fp16_scales_the_loss_and_unscales_before_the_step():
    (weight, optimizer), precision = one_weight(), AMP("fp16", device=CPU)
    precision.backward(weight.sum())
    assert weight.grad.tolist() == [2.0**16, 2.0**16]
    assert precision.step(optimizer, None)
    assert weight.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("clip_norm", [None, 0.5, 5.0, 1000.0])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_clipped_gradients_are_those_of_fp32(dtype, clip_norm):
    norms = []
    for precision in (FP32(tf32=False, device=CPU), AMP(dtype, device=CPU)):
        weight, optimizer = one_weight()
        precision.backward((weight * torch.tensor([3.0, 4.0])).sum())
        precision.step(optimizer, clip_norm)
        norms.append(float(weight.grad.norm()))
    assert norms[1] == pytest.approx(norms[0], rel=1e-6)
    assert norms[0] == pytest.approx(min(5.0, clip_norm or 5.0), rel=1e-5)


def test_gradients_of_passes_add_up_and_are_unscaled_once():
    (weight, optimizer), precision = one_weight(), AMP("fp16", device=CPU)
    for _ in range(3):
        precision.backward(weight.sum())
    precision.step(optimizer, 100.0)
    assert weight.grad.tolist() == [3.0, 3.0]


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_overflow_skips_the_step_and_says_so_and_the_next_one_steps(name, clip_norm):
    weight, precision = nn.Parameter(torch.ones(2)), AMP("fp16", device=CPU)
    optimizer = OPTIMIZERS[name]([weight])
    precision.backward((weight * 1e38).sum())
    assert not precision.step(optimizer, clip_norm)
    assert weight.tolist() == [1.0, 1.0]
    optimizer.zero_grad()
    precision.backward(weight.sum())
    assert precision.step(optimizer, clip_norm)
    assert weight.tolist() != [1.0, 1.0]


def test_an_overflow_halves_the_scale():
    (weight, optimizer), precision = one_weight(), AMP("fp16", device=CPU)
    precision.backward((weight * 1e38).sum())
    precision.step(optimizer, None)
    assert precision.state_dict()["scale"] == 2.0**15


def test_an_overflow_in_one_of_several_passes_skips_the_step():
    (weight, optimizer), precision = one_weight(), AMP("fp16", device=CPU)
    for factor in (1.0, 1e38, 1.0):
        precision.backward((weight * factor).sum())
    assert not precision.step(optimizer, 1.0)
    assert weight.tolist() == [1.0, 1.0]


def test_the_scale_is_saved_and_comes_back():
    (weight, optimizer), precision = one_weight(), AMP("fp16", device=CPU)
    precision.backward((weight * 1e38).sum())
    precision.step(optimizer, None)
    state = copy.deepcopy(precision.state_dict())
    resumed = AMP("fp16", device=CPU)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    optimizer.zero_grad()
    resumed.backward(weight.sum())
    assert resumed.step(optimizer, None)


@pytest.mark.parametrize("before", [FP32(tf32=False, device=CPU), AMP("bf16", device=CPU)])
def test_after_a_precision_without_a_scale_fp16_begins_with_a_new_one(before):
    precision = AMP("fp16", device=CPU)
    precision.load_state_dict(before.state_dict())
    assert precision.state_dict() == AMP("fp16", device=CPU).state_dict()


@pytest.mark.parametrize("after", [FP32(tf32=False, device=CPU), AMP("bf16", device=CPU)])
def test_a_precision_without_a_scale_ignores_one(after):
    after.load_state_dict(AMP("fp16", device=CPU).state_dict())
    assert after.state_dict() == {}


def test_a_type_that_is_none_is_named():
    with pytest.raises(
        ConfigError,
        match=r"^error\[C110\]: precision.dtype = fp8: not a 16-bit type; choose bf16 or fp16$",
    ):
        AMP("fp8", device=CPU)
