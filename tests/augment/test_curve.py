import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from framework.augment.curve import QuantileCurve, beta, log_uniform
from framework.order.draws import draws

BELOW_ONE = 1 - 2**-24
UNIFORM = draws(torch.arange(20000), 0, 0, 1)[:, 0]


@given(st.floats(0.05, 20))
def test_beta_is_the_quantile_function_that_scipy_knows(alpha):
    expected = torch.from_numpy(stats.beta.ppf(UNIFORM[:500].double().numpy(), alpha, alpha))
    assert torch.allclose(beta(alpha)(UNIFORM[:500]).double(), expected, atol=2e-3)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.5, 1.0, 2.0, 8.0])
def test_many_numbers_are_distributed_as_beta(alpha):
    lower = (
        beta(alpha)(UNIFORM / 2).double().numpy()
    )  # near 1 float32 has no room for the many numbers of a small alpha
    assert stats.kstest(lower, lambda x: 2 * stats.beta.cdf(x, alpha, alpha)).statistic < 0.012


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 50.0])
def test_the_ends_stay_inside_and_the_middle_is_a_half(alpha):
    low, middle, high = beta(alpha)(torch.tensor([0.0, 0.5, BELOW_ONE])).tolist()
    assert low == 0
    assert middle == 0.5
    assert 0.5 < high <= 1


def test_a_uniform_beta_is_the_draw_itself():
    assert torch.allclose(beta(1.0)(UNIFORM), UNIFORM, atol=1e-6)


@given(st.floats(0.01, 1), st.floats(1, 100), st.floats(0, BELOW_ONE, width=32))
def test_a_log_uniform_number_is_a_power(low, high, number):
    expected = low * (high / low) ** number
    assert math.isclose(
        log_uniform(low, high)(torch.tensor([number])).item(), expected, rel_tol=1e-5
    )


def test_between_points_it_is_a_straight_line():
    square = QuantileCurve(torch.linspace(0, 1, 4097, dtype=torch.float64) ** 2)
    assert torch.allclose(square(UNIFORM), UNIFORM**2, atol=1e-6)
