import re
from dataclasses import replace

import pytest

from framework.config.targets import ROOT
from framework.contracts.span import Span
from framework.diagnosis import judge
from framework.diagnosis.facts import ItemFacts, LoaderFacts, PythonLine, ScriptFacts, Verdict, gain
from framework.diagnosis.step_rules import PYTHON_SLOWS
from tests.diagnosis.cases import FINE, SLOWED, facts


def test_the_documentation_has_a_row_for_every_cause():
    page = (ROOT / "docs" / "diagnose.md").read_text().partition("## Every cause")[2]
    rows = re.findall(r"^\| `(\w+)` \|[^|]+\|[^|]+\|$", page.partition("\n## ")[0], re.MULTILINE)
    names = ("data", "step")
    paths = [ROOT / "framework" / "diagnosis" / f"{name}_rules.py" for name in names]
    code = "".join(path.read_text() for path in paths)
    texts = {*re.findall(r'"(\w+)"', code), *(f"python_in_{part}" for part in PYTHON_SLOWS)}
    verdicts = set(re.findall(r'Verdict\(\s*"(\w+)"', code))
    assert len(rows) == len(set(rows)) > 40
    assert verdicts < set(rows) < texts


@pytest.mark.parametrize(
    ("changes", "first"),
    [
        ({"workers": 0, "loader": "plain"}, "raise_workers"),
        ({"prepare_two": 310.0, "has_function": True}, "processes"),
        ({**FINE}, "data_is_fine"),
    ],
)
def test_the_planted_cause_comes_first(changes, first):
    assert judge.verdicts_of(facts(**changes))[0].rule == first


def test_the_limit_names_its_cause():
    slow = facts(workers=0, loader="plain")
    cause = judge.cause_of(slow, judge.verdicts_of(slow), [])
    assert judge.limit_of(slow, cause).startswith(
        "Data limits training: waiting for data takes 75 % of a step (computing 25 %). "
        "Without it, training would be up to 4.0 times as fast. No workers"
    )
    fine = facts(**FINE)
    assert judge.limit_of(fine, judge.cause_of(fine, [], [])).startswith(
        "Computing limits training: computing takes 99 % of a step. "
        "Data is not your problem: at most 1 % to win"
    )


WAIT = {"parts": ("wait",)}
COMPUTE = {"parts": ("forward", "backward", "optimizer", "compute")}


def test_the_cause_is_that_of_the_largest_part():
    slow = facts(workers=0, loader="plain")
    fine = facts(**FINE)
    compute = [Verdict("larger_batch", "l", "w", 2.0, tried=True, **COMPUTE)]
    assert judge.cause_of(slow, compute, []) is None
    assert judge.cause_of(fine, compute, []).rule == "larger_batch"
    untried = [Verdict("larger_batch", "l", "w", 2.0, modeled=2.0, **COMPUTE)]
    assert judge.cause_of(fine, [], untried).rule == "larger_batch"


@pytest.mark.parametrize(("gain", "cause"), [(1.4, "decode_jpeg"), (1.5, "slow_records")])
def test_a_few_slow_records_are_the_cause_if_most_of_a_step_waits_for_them(gain, cause):
    slow = facts(workers=0, loader="plain")
    decoding = Verdict("decode_jpeg", "d", "w", 4.0, tried=True, modeled=4.0, **WAIT)
    records = Verdict("slow_records", "s", "w", gain, modeled=gain, **WAIT)
    assert judge.cause_of(slow, [decoding, records], []).rule == cause


SPANS_S = {"wait": 1e-5, "copy": 1e-5, "forward": 0.04, "backward": 0.02, "optimizer": 0.004}


def test_data_takes_what_a_step_takes_longer_than_computing():
    shares = judge.shares_of(facts(compute_spans_s=SPANS_S))
    assert list(shares) == ["wait", "forward", "backward", "optimizer", "copy"]
    assert shares["wait"] == pytest.approx(0.75)
    assert shares["forward"] == pytest.approx(0.25 * 40 / 64)
    assert sum(shares.values()) == pytest.approx(1)


def test_a_trial_that_gains_proves_a_share():
    tried = [Verdict("lower_workers", "s", "w", 5.0, tried=True, parts=("wait",))]
    assert judge.shares_of(facts(**FINE), tried)["wait"] == pytest.approx(0.8)
    unproved = [Verdict("lower_workers", "s", "w", 5.0, parts=("wait",))]
    assert judge.shares_of(facts(**FINE), unproved)["wait"] < 0.02


def test_the_headline_says_if_reading_slows_the_step():
    known = facts(**SLOWED)
    assert judge.limit_of(known, None).startswith(
        "Data limits training: computing more slowly while data is read takes 42 % of a step ("
    )


ITEMS = ItemFacts(item_s=2e-3, cpu_share=1.0, num_items=1000, item_bytes=3000)


def spans(wait_ms, compute_ms, steps=10):
    milliseconds = {"wait": wait_ms, "forward": compute_ms}
    return {name: Span.of([number / 1e3] * steps) for name, number in milliseconds.items()}


LOADER = LoaderFacts(workers=0, batch_size=10)
CORES = {"compute_cores": 1.0, "num_cores": 4, "num_threads": 4}
SCRIPT = ScriptFacts(
    spans=spans(20, 10), steps=10, records=100, loader=LOADER, items=ITEMS, epochs=2, **CORES
)
SCRIPT_LINE = PythonLine("step", "/a/train.py", 7, "loss_of", "return loop(x)", 0.6)
FINE_SCRIPT = replace(SCRIPT, spans=spans(0.1, 10), items=None)


def script_rules(facts):
    return [verdict.rule for verdict in judge.script_verdicts(facts)]


def test_the_headline_names_the_largest_part_first():
    assert judge.script_limit(SCRIPT) == (
        "Data limits training: wait takes 67 % of a step (up to 3.00 times as fast if no step "
        "waited)."
    )
    assert judge.script_limit(FINE_SCRIPT).startswith(
        "Computing limits training: forward takes 99 % of a step."
    )
    some = replace(SCRIPT, spans=spans(2, 10))
    assert "and 17 % waits for data" in judge.script_limit(some)
    assert "No training step" in judge.script_limit(replace(SCRIPT, steps=0))
    assert judge.script_verdicts(replace(SCRIPT, steps=0)) == []


def test_workers_and_a_store_are_advised_to_a_script_that_waits():
    assert set(script_rules(SCRIPT)) == {"pack_items", "more_workers"}
    assert gain(SCRIPT, workers=4, start_s=0.0) == pytest.approx(3.0)
    slower = replace(SCRIPT, items=replace(ITEMS, item_s=8e-3), spans=spans(80, 10))
    assert gain(slower, workers=4, start_s=0.0) == pytest.approx(90 / 22.5)


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        (replace(FINE_SCRIPT, loader=LoaderFacts(16, 10)), "fewer_workers"),
        (replace(FINE_SCRIPT, num_threads=16), "fewer_threads"),
        (replace(FINE_SCRIPT, others_cores=3.0), "other_programs"),
        (replace(FINE_SCRIPT, validation_s=1.0), "rarer_validation"),
        (replace(FINE_SCRIPT, lines=(SCRIPT_LINE,)), "python_lines"),
        (replace(SCRIPT, loader=LoaderFacts(4, 10), start_s=0.1), "persistent_workers"),
        (
            replace(
                SCRIPT, items=replace(ITEMS, decoded=(900, 1200), size=(224, 224), decode_share=0.8)
            ),
            "smaller_images",
        ),
        (
            replace(FINE_SCRIPT, gpu="GPU", spans={**spans(0.1, 10), "copy": Span.of([2e-3] * 10)}),
            "pinned_memory",
        ),
    ],
)
def test_each_cause_has_its_rule(facts, rule):
    assert rule in script_rules(facts)


@pytest.mark.parametrize(
    ("rough", "rule"),
    [({"num_threads": 16}, "fewer_threads"), ({"others_cores": 3.0}, "other_programs")],
)
def test_what_makes_figures_of_computing_rough_comes_first_unless_data_limits(rough, rule):
    assert script_rules(replace(FINE_SCRIPT, **rough))[0] == rule
    assert script_rules(replace(SCRIPT, **rough))[-1] == rule  # data limits
