import pytest

from framework.commands.diagnose.host_python import HostPython, PythonLine
from framework.commands.diagnose.python_rules import (
    python_in_augment,
    python_in_model,
    python_in_objective,
    python_in_transform,
)
from tests.commands.diagnose.cases import FINE, facts

LINE = PythonLine("objective", "/code/loss.py", 7, "__call__", "total += x.item()", 0.6)
PARTS_OF = {
    "python_in_model": ("compute", "forward", "backward"),
    "python_in_objective": ("compute", "forward"),
    "python_in_augment": ("copy",),
    "python_in_transform": ("wait",),
}
STEP = HostPython({"objective": 0.8, "model": 0.5, "augment": 0.3}, 0.9, (LINE,))
READY = {**FINE, "prepare": 30_000.0}  # batches are ready before they are wanted
OF_FUNCTION = {"settings": {"has_function": True}}


@pytest.mark.parametrize(
    ("rule", "changes", "share"),
    [
        (python_in_objective, {"rates": READY}, "79 %"),
        (python_in_model, {"rates": READY}, "50 %"),
        (python_in_augment, {"rates": READY}, "30 %"),
        (python_in_augment, {}, None),  # a step waits for 75 % of its time
        (python_in_transform, OF_FUNCTION, "90 %"),
        (python_in_transform, {}, None),
        (python_in_transform, {**OF_FUNCTION, "rates": FINE}, None),
    ],
)
def test_a_rule_speaks_where_python_takes_much(rule, changes, share):
    verdict = rule(facts(python=STEP, **changes))
    assert (verdict is None) == (share is None)
    if verdict is not None:
        assert verdict.rule == rule.__name__
        assert share in verdict.says
        assert verdict.edit
        assert verdict.gain > 1
        assert verdict.parts == PARTS_OF[rule.__name__]


def test_the_gain_without_the_function_is_measured_if_it_can_be():
    sampled = python_in_transform(facts(**OF_FUNCTION, python=HostPython({}, 0.4)))
    plain = {"rates": {"prepare_plain": 3000.0}}
    measured = python_in_transform(facts(**OF_FUNCTION, **plain, python=HostPython({}, 0.4)))
    assert measured.gain > sampled.gain


def test_the_line_is_named():
    verdict = python_in_objective(facts(python=STEP, rates=READY))
    assert "loss.py:7 (__call__)" in verdict.says
    assert verdict.edit.endswith("loss.py:7 anew: total += x.item()")
    # of a step, 1 % waits
    assert verdict.gain == pytest.approx(1 / (0.99 * (1 - 0.8) + 0.01), rel=0.02)


@pytest.mark.parametrize(
    ("rates", "gain"),
    [
        # half of a step waits, because the threads that prepare wait for Python's lock
        ({"whole": 500.0, "wait": 0.5, "prepare": 30_000.0, "loader": 30_000.0}, 8.6),
        # taking a batch that is ready costs a tenth of a step
        ({"whole": 900.0, "wait": 0.1, "prepare": 30_000.0}, 1 / (0.9 * 0.2 + 0.1)),
        # batches cost as much as half of what Python takes
        ({**FINE, "prepare": 1000.0, "prepare_two": 2000.0}, 2.0),
        # the loader alone makes 500 records a second, so half of the step is left
        ({"prepare": None}, 1 / (0.5 + 0.2 / 4)),
    ],
)
def test_without_python_a_step_waits_only_for_what_batches_cost(rates, gain):
    step = HostPython({"objective": 0.8})
    verdict = python_in_objective(facts(python=step, rates=rates))
    assert verdict.gain == pytest.approx(gain, rel=0.05)


def test_a_rest_that_was_measured_without_the_python_counts():
    python = HostPython({"objective": 0.8}, rest_s={"objective": 0.001})
    rates = {**READY, "spans_s": {"copy": 0.0}}
    verdict = python_in_objective(facts(python=python, rates=rates))
    beside = python_in_objective(facts(python=HostPython({"objective": 0.8}), rates=rates))
    assert verdict.gain > beside.gain
    # computing alone does not copy
    rates = {**READY, "spans_s": {"copy": 0.003}, "compute_spans_s": {"copy": 0.001}}
    copies = python_in_objective(facts(python=python, rates=rates))
    assert beside.gain < copies.gain < verdict.gain


@pytest.mark.parametrize(("rest", "left_s"), [({}, 19.2), ({"model": 0.015}, 16.0)])
def test_without_the_model_s_python_a_step_takes_what_its_operators_take_alone(rest, left_s):
    # Steps of 64 ms: 19.2 ms beside the Python. Copying takes 1 ms.
    rates = {"whole": 1000.0, "wait": 0.0, "compute": 1000.0, "loader": 1e6, "prepare": 1e6}
    rates["spans_s"] = {"copy": 0.001, "forward": 0.051, "backward": 0.01, "optimizer": 0.002}
    python = HostPython({"model": 0.7}, rest_s=rest)
    verdict = python_in_model(facts(python=python, rates=rates))
    assert verdict.gain == pytest.approx(64 / left_s, rel=0.02)
