"""Whether a setting is slower, decided in pairs."""

import numpy as np
import pytest

from framework.commands.bisect.compared_rates import ALIKE, SLOWER, UNSURE, compared


def noisy(rate, spread, seed):
    rng = np.random.default_rng(seed)
    return lambda: rate * float(np.exp(rng.normal(0, spread)))


@pytest.mark.parametrize(
    ("slow", "spread", "verdict"),
    [(90, 0.01, SLOWER), (100, 0.005, ALIKE), (120, 0.01, ALIKE), (98, 0.3, UNSURE)],
)
def test_the_verdict_follows_the_rates(slow, spread, verdict):
    result = compared(noisy(100, spread, 1), noisy(slow, spread, 2), most_pairs=12)
    assert result.verdict == verdict
    assert f"{verdict}: " in result.words


def test_it_stops_when_it_is_sure_and_gives_up_otherwise():
    assert len(compared(noisy(100, 0.01, 1), noisy(50, 0.01, 2), 50).pairs.ratios) == 6
    assert len(compared(noisy(100, 0.5, 1), noisy(97, 0.5, 2), 8).pairs.ratios) == 8


def test_settings_are_measured_in_alternating_order():
    order = []
    compared(lambda: order.append("a") or 1.0, lambda: order.append("b") or 0.5, 6)
    assert "".join(order) == "baab" * 3


def test_equal_settings_are_seldom_called_slower():
    verdicts = [
        compared(noisy(100, 0.05, seed), noisy(100, 0.05, seed + 1000), 12).verdict
        for seed in range(200)
    ]
    assert verdicts.count(SLOWER) <= 10
