import pytest

from framework.commands.diagnose.compute_rules import (
    amp,
    channels_last,
    compile_model,
    data_is_fine,
    larger_batch,
    synchronizations,
)
from framework.commands.diagnose.device_syncs import Sync
from tests.commands.diagnose.cases import CUDA, FINE, facts

SYNCS = (Sync("/code/loss.py", 9, "item()", 3000, "total += x.item()"),)
SMALL_STEPS = {**FINE, "other": 600.0}


@pytest.mark.parametrize(
    ("rule", "changes", "speaks"),
    [
        (data_is_fine, {"rates": FINE}, True),
        (data_is_fine, {}, False),
        (amp, {"rates": FINE, "machine": CUDA}, True),
        (amp, {"rates": FINE}, False),
        (amp, {"rates": FINE, "machine": {"bf16": True}}, True),
        (amp, {"rates": FINE, "machine": CUDA, "settings": {"precision": "amp"}}, False),
        (amp, {"machine": CUDA}, False),
        (larger_batch, {"rates": SMALL_STEPS}, True),
        (larger_batch, {"rates": FINE}, False),
        (larger_batch, {"rates": {**FINE, "other": None}}, False),
        (channels_last, {"rates": FINE, "convolutional": True}, True),
        (channels_last, {"rates": FINE}, False),
        (compile_model, {"rates": SMALL_STEPS, "machine": CUDA}, True),
        (compile_model, {"rates": SMALL_STEPS}, False),
        (synchronizations, {"rates": FINE, "machine": CUDA, "syncs": SYNCS}, True),
        (synchronizations, {"rates": FINE, "syncs": SYNCS}, False),
        (synchronizations, {"rates": FINE, "machine": CUDA}, False),
    ],
)
def test_a_rule_speaks_where_computing_limits(rule, changes, speaks):
    verdict = rule(facts(**changes))
    assert (verdict is not None) == speaks
    assert verdict is None or (
        verdict.rule == rule.__name__ and verdict.gain >= 1 and verdict.says and verdict.why
    )


TINY = {"settings": {"batch_size": 1}}
MOSTLY_FIXED = {"compute": 100.0, "other": 700.0, "other_size": 8}


def test_tiny_batches_slow_loading_as_well():
    verdict = larger_batch(facts(**TINY, rates={**MOSTLY_FIXED, "whole": 40.0}))
    assert set(verdict.parts) >= {"wait", "copy", "forward"}
    assert verdict.overrides == ("batch_size=64",)
    assert larger_batch(facts(rates={**MOSTLY_FIXED, "other_size": 512, "whole": 40.0})) is None


def test_that_data_is_fine_is_said_with_a_bound():
    verdict = data_is_fine(facts(rates={"whole": 980.0}))
    assert "at most 2 % to win" in verdict.says
    assert verdict.gain == pytest.approx(1.0204, abs=1e-4)
