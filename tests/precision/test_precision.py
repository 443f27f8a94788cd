"""What each precision does beyond the contract: its types, its scale, its switch, and clipping."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from framework.errors import ConfigError
from framework.precision import amp, fp32
from framework.train.step import clipping

CPU = torch.device("cpu")


def one_weight():
    weight = nn.Parameter(torch.ones(2))
    return weight, torch.optim.SGD([weight], lr=1.0)


@pytest.fixture
def switches():
    """Restore the switches of torch that a precision sets."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)
    torch.backends.cudnn.allow_tf32 = True


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(("tf32", "precision"), [(True, "high"), (False, "highest")])
def test_tf32_is_torch_s_own_switch_of_products_and_convolutions(tf32, precision):
    fp32.FP32(tf32, device=CPU)
    assert torch.get_float32_matmul_precision() == precision
    assert torch.backends.cudnn.allow_tf32 == torch.backends.cuda.matmul.allow_tf32 == tf32


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize(
    ("make", "dtype", "scale"),
    [
        pytest.param(lambda: fp32.FP32(tf32=False, device=CPU), torch.float32, 1.0, id="fp32"),
        pytest.param(lambda: amp.AMP("bf16", device=CPU), torch.bfloat16, 1.0, id="bf16"),
        pytest.param(lambda: amp.AMP("fp16", device=CPU), torch.float16, 2.0**16, id="fp16"),
    ],
)
def test_products_have_the_type_of_the_precision_and_losses_its_scale(make, dtype, scale):
    precision = make()
    with precision.autocast():
        assert nn.Linear(4, 4)(torch.randn(2, 4)).dtype == dtype
    assert precision.loss_scale == scale
    weight, _ = one_weight()
    precision.backward(weight.sum())
    assert weight.grad.tolist() == [scale] * 2


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
    "fused adam": lambda parameters: torch.optim.Adam(parameters, lr=0.5, fused=True),
    "fused sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.5, fused=True),
}


@pytest.mark.parametrize("clip_norm", [None, 1.0])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_an_overflow_in_one_of_several_passes_skips_the_step_and_the_next_one_steps(
    make, clip_norm
):
    weight, precision = nn.Parameter(torch.ones(2)), amp.AMP("fp16", device=CPU)
    optimizer = make([weight])
    for factor in (1.0, 1e38, 1.0):
        precision.backward((weight * factor).sum())
    assert not precision.step(optimizer, clipping(nn.Module(), optimizer, clip_norm))
    assert weight.tolist() == [1.0, 1.0]
    assert precision.state_dict()["scale"] == 2.0**15
    optimizer.zero_grad()
    precision.backward(weight.sum())
    assert precision.step(optimizer, clipping(nn.Module(), optimizer, clip_norm))
    assert weight.tolist() != [1.0, 1.0]


@pytest.mark.usefixtures("switches")
def test_a_precision_without_a_scale_and_one_with_it_continue_each_other():
    unscaled = fp32.FP32(tf32=False, device=CPU), amp.AMP("bf16", device=CPU)
    for before in unscaled:
        after = amp.AMP("fp16", device=CPU)
        after.load_state_dict(before.state_dict())
        assert after.state_dict() == amp.AMP("fp16", device=CPU).state_dict()
        before.load_state_dict(after.state_dict())
        assert before.state_dict() == {}


def test_an_unknown_type_is_refused():
    what = r"^error\[C110\]: precision.dtype = fp8: not a 16-bit type; choose bf16 or fp16$"
    with pytest.raises(ConfigError, match=what):
        amp.AMP("fp8", device=CPU)


@given(
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8),
    st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=8),
    st.floats(1e-3, 1e3),
)
def test_gradients_of_all_groups_are_shortened_together_to_the_norm(first, second, clip_norm):
    parameters = [nn.Parameter(torch.zeros(len(values))) for values in (first, second, [0.0])]
    groups = [{"params": parameters[:1]}, {"params": parameters[1:]}]
    for parameter, values in zip(parameters, (first, second), strict=False):
        parameter.grad = torch.tensor(values)
    before = torch.tensor([*first, *second])
    clipping(nn.ParameterList(parameters), torch.optim.SGD(groups, lr=1.0), clip_norm)()
    after = torch.cat([parameter.grad for parameter in parameters[:2]])
    norm = float(before.norm())
    torch.testing.assert_close(
        after, before * min(1.0, clip_norm / max(norm, 1e-9)), rtol=1e-3, atol=1e-6
    )
    assert parameters[2].grad is None
