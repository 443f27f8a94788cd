import pytest

from framework.diagnosis.facts import MachineFacts
from framework.measure.machine_watch import MachineUse
from tests.diagnosis.cases import CUDA, FINE, SLOWED, verdict_of

LOCKED = {"prepare_two": 310.0}
FULL = MachineFacts(use=MachineUse(1.0, own_cores=3.8))


@pytest.mark.parametrize(
    ("rule", "changes", "wanted"),
    [
        ("raise_workers", {}, ("workers.num=4",)),
        ("raise_workers", {"workers": 0, "loader": "plain"}, ("workers.num=4",)),
        ("raise_workers", {"workers": 4}, None),
        ("raise_workers", {**FINE}, None),
        ("raise_workers", {"prepare": 64000.0}, None),
        ("raise_workers", {**LOCKED}, None),
        ("raise_workers", {"prepare": None}, None),
        ("lower_workers", {"workers": 16}, ("workers.num=4",)),
        (
            "lower_workers",
            {"workers": 16, "kind": "process"},
            ("workers.num=4", "workers.kind=thread"),
        ),
        ("lower_workers", {"workers": 16, "kind": "process", **LOCKED}, ("workers.num=4",)),
        ("lower_workers", {"workers": 4}, None),
        ("no_workers", {"prepare": 9000.0}, ("workers.num=0",)),
        (
            "no_workers",
            {"prepare": 9000.0, "loader": "plain"},
            ("workers.num=0", "loader=prefetch"),
        ),
        ("no_workers", {}, None),
        ("processes", {**LOCKED}, ("workers.kind=process", "workers.num=4")),
        (
            "processes",
            {"has_function": True, "prepare_plain": 3000.0},
            ("workers.kind=process", "workers.num=4"),
        ),
        ("processes", {"has_function": True, "prepare_plain": 400.0}, None),
        ("processes", {}, None),
        ("processes", {**LOCKED, "kind": "process"}, None),
        ("processes", {**LOCKED, **FINE}, None),
        ("processes", {**SLOWED}, None),
        ("slowed_step", {**SLOWED}, ("workers.kind=process", "workers.num=3")),
        ("slowed_step", {**SLOWED, "workers": 16}, None),
        ("slowed_step", {**SLOWED, "loader_rate": 500.0}, None),
        ("slowed_step", {**SLOWED, "wait": 0.6}, None),
        ("slowed_step", {**SLOWED, "spans_s": SLOWED["compute_spans_s"]}, None),
        ("slowed_step", {**SLOWED, "on_machine": FULL}, None),
        ("slowed_step", {**SLOWED, "on_machine": FULL, **CUDA, "workers": 4}, ("workers.num=2",)),
        ("slowed_step", {**SLOWED, "whole": 990.0}, None),
        ("slowed_step", {}, None),
        ("threads", {"kind": "process"}, ("workers.kind=thread",)),
        ("threads", {"kind": "process", "has_function": True}, None),
        ("threads", {"kind": "process", **LOCKED}, None),
        ("threads", {"kind": "process", "workers": 16}, None),
        ("threads", {}, None),
        ("prefetch", {"loader": "plain"}, ("loader=prefetch",)),
        ("prefetch", {"loader": "plain", **CUDA}, ("loader=stream",)),
        ("prefetch", {"loader": "plain", "workers": 0}, None),
        ("prefetch", {"loader": "plain", "workers": 0, "prepare": 64000.0}, ("loader=prefetch",)),
        ("prefetch", {}, None),
        ("prefetch", {"loader": "plain", **FINE}, None),
        ("stream", {**CUDA, "copy": 2000.0}, ("loader=stream",)),
        ("stream", {**CUDA, "copy": 2000000.0}, None),
        ("stream", {"copy": 2000.0}, None),
        ("stream", {**CUDA, "copy": 2000.0, "loader": "stream"}, None),
        (
            "augment_on_device",
            {**CUDA, "transform": "flip"},
            ("transform=none", "augment=crop_flip", "augment.padding=0"),
        ),
        ("augment_on_device", {"transform": "flip"}, None),
        ("augment_on_device", {**CUDA, "transform": "flip", "augment": "mixup"}, None),
    ],
)
def test_a_rule_speaks_if_and_only_if_it_should(rule, changes, wanted):
    verdict = verdict_of(rule, changes)
    assert (None if verdict is None else verdict.overrides) == wanted


def test_a_function_on_the_host_is_advised_to_move_to_the_gpu_in_words():
    changes = {"has_function": True, "prepare_plain": 3000.0}
    verdict = verdict_of("augment_on_device", {**CUDA, **changes})
    assert verdict.overrides == ()
    assert "augment" in verdict.edit
    assert "90 %" in verdict.says


def test_the_gain_of_workers_is_that_of_the_model():
    verdict = verdict_of("raise_workers", {"workers": 0, "loader": "plain"})
    load_s, compute_s = 64 / 300, 64 / 1000
    assert verdict.gain == pytest.approx(
        (load_s + compute_s) / ((load_s + compute_s) / 4), rel=0.15
    )


def test_a_slowed_step_says_by_how_much_and_what_else_helps():
    verdict = verdict_of("slowed_step", {**SLOWED, **CUDA})
    assert verdict.says.startswith("Reading slows the step by 100 %: ")
    assert "64.0 ms on a batch that stays on the device, and 128.0 ms" in verdict.says
    assert "fewer threads" in verdict.why
    assert "pack.encode=raw" in verdict.why
    assert "data=dali" in verdict.why
    assert verdict.gain == pytest.approx(1 / (1 - 0.02 - 480 / 1200))  # what reading takes
