import pytest

from framework.commands.diagnose.loading_rules import (
    augment_on_device,
    lower_workers,
    no_workers,
    prefetch,
    processes,
    raise_workers,
    slowed_step,
    stream,
    threads,
)
from framework.commands.diagnose.machine_facts import MachineFacts
from framework.measure.machine_watch import MachineUse
from tests.commands.diagnose.cases import CUDA, FINE, SLOWED, facts

LOCKED = {"prepare_two": 310.0}
FULL = MachineFacts(use=MachineUse(1.0, own_cores=3.8))


@pytest.mark.parametrize(
    ("rule", "changes", "wanted"),
    [
        (raise_workers, {}, ("workers.num=4",)),
        (raise_workers, {"settings": {"workers": 0, "loader": "plain"}}, ("workers.num=4",)),
        (raise_workers, {"settings": {"workers": 4}}, None),
        (raise_workers, {"rates": FINE}, None),
        (raise_workers, {"rates": {"prepare": 64e3}}, None),
        (raise_workers, {"rates": LOCKED}, None),
        (raise_workers, {"rates": {"prepare": None}}, None),
        (lower_workers, {"settings": {"workers": 16}}, ("workers.num=4",)),
        (
            lower_workers,
            {"settings": {"workers": 16, "kind": "process"}},
            ("workers.num=4", "workers.kind=thread"),
        ),
        (
            lower_workers,
            {"settings": {"workers": 16, "kind": "process"}, "rates": LOCKED},
            ("workers.num=4",),
        ),
        (lower_workers, {"settings": {"workers": 4}}, None),
        (no_workers, {"rates": {"prepare": 9000.0}}, ("workers.num=0",)),
        (
            no_workers,
            {"rates": {"prepare": 9000.0}, "settings": {"loader": "plain"}},
            ("workers.num=0", "loader=prefetch"),
        ),
        (no_workers, {}, None),
        (processes, {"rates": LOCKED}, ("workers.kind=process", "workers.num=4")),
        (
            processes,
            {"settings": {"has_function": True}, "rates": {"prepare_plain": 3000.0}},
            ("workers.kind=process", "workers.num=4"),
        ),
        (processes, {"settings": {"has_function": True}, "rates": {"prepare_plain": 400.0}}, None),
        (processes, {}, None),
        (processes, {"rates": LOCKED, "settings": {"kind": "process"}}, None),
        (processes, {"rates": {**LOCKED, **FINE}}, None),
        (processes, {"rates": SLOWED}, None),
        (slowed_step, {"rates": SLOWED}, ("workers.kind=process", "workers.num=3")),
        (slowed_step, {"rates": SLOWED, "settings": {"workers": 16}}, None),
        (slowed_step, {"rates": {**SLOWED, "loader": 500.0}}, None),
        (slowed_step, {"rates": {**SLOWED, "wait": 0.6}}, None),
        (slowed_step, {"rates": {**SLOWED, "spans_s": SLOWED["compute_spans_s"]}}, None),
        (slowed_step, {"rates": SLOWED, "on_machine": FULL}, None),
        (
            slowed_step,
            {"rates": SLOWED, "on_machine": FULL, "machine": CUDA, "settings": {"workers": 4}},
            ("workers.num=2",),
        ),
        (slowed_step, {"rates": {**SLOWED, "whole": 990.0}}, None),
        (slowed_step, {}, None),
        (threads, {"settings": {"kind": "process"}}, ("workers.kind=thread",)),
        (threads, {"settings": {"kind": "process", "has_function": True}}, None),
        (threads, {"settings": {"kind": "process"}, "rates": LOCKED}, None),
        (threads, {"settings": {"kind": "process", "workers": 16}}, None),
        (threads, {}, None),
        (prefetch, {"settings": {"loader": "plain"}}, ("loader=prefetch",)),
        (prefetch, {"settings": {"loader": "plain"}, "machine": CUDA}, ("loader=stream",)),
        (prefetch, {"settings": {"loader": "plain", "workers": 0}}, None),
        (
            prefetch,
            {"settings": {"loader": "plain", "workers": 0}, "rates": {"prepare": 64e3}},
            ("loader=prefetch",),
        ),
        (prefetch, {}, None),
        (prefetch, {"settings": {"loader": "plain"}, "rates": FINE}, None),
        (stream, {"machine": CUDA, "rates": {"copy": 2000.0}}, ("loader=stream",)),
        (stream, {"machine": CUDA, "rates": {"copy": 2e6}}, None),
        (stream, {"rates": {"copy": 2000.0}}, None),
        (
            stream,
            {"machine": CUDA, "rates": {"copy": 2000.0}, "settings": {"loader": "stream"}},
            None,
        ),
        (
            augment_on_device,
            {"machine": CUDA, "settings": {"transform": "flip"}},
            ("transform=none", "augment=crop_flip", "augment.padding=0"),
        ),
        (augment_on_device, {"settings": {"transform": "flip"}}, None),
        (
            augment_on_device,
            {"machine": CUDA, "settings": {"transform": "flip", "augment": "mixup"}},
            None,
        ),
    ],
)
def test_a_rule_speaks_if_and_only_if_it_should(rule, changes, wanted):
    verdict = rule(facts(**changes))
    assert (None if verdict is None else verdict.overrides) == wanted
    assert verdict is None or (
        verdict.rule == rule.__name__ and verdict.gain >= 1 and verdict.says and verdict.why
    )


def test_a_function_on_the_host_is_advised_to_move_to_the_gpu_in_words():
    verdict = augment_on_device(
        facts(machine=CUDA, settings={"has_function": True}, rates={"prepare_plain": 3000.0})
    )
    assert verdict.overrides == ()
    assert "augment" in verdict.edit
    assert "90 %" in verdict.says


def test_the_gain_of_workers_is_that_of_the_model():
    verdict = raise_workers(facts(settings={"workers": 0, "loader": "plain"}))
    load_s, compute_s = 64 / 300, 64 / 1000
    assert verdict.gain == pytest.approx(
        (load_s + compute_s) / ((load_s + compute_s) / 4), rel=0.15
    )


def test_a_slowed_step_says_by_how_much_and_what_else_helps():
    verdict = slowed_step(facts(rates=SLOWED, machine=CUDA))
    assert verdict.says.startswith("Reading slows the step by 100 %: ")
    assert "64.0 ms on a batch that stays on the device, and 128.0 ms" in verdict.says
    assert "fewer threads" in verdict.why
    assert "pack.encode=raw" in verdict.why
    assert "data=dali" in verdict.why
    assert verdict.gain == pytest.approx(1 / (1 - 0.02 - 480 / 1200))  # what reading takes
