"""Advice for a script follows from its facts."""

from dataclasses import replace

import pytest

from framework.contracts.span import Span
from framework.diagnosis.facts import ItemFacts, LoaderFacts, PythonLine, ScriptFacts, gain
from framework.diagnosis.judge import script_limit, script_verdicts

ITEMS = ItemFacts(item_s=2e-3, cpu_share=1.0, num_items=1000, item_bytes=3000)


def spans(wait_ms, compute_ms, steps=10):
    return {
        "wait": Span.of([wait_ms / 1e3] * steps),
        "forward": Span.of([compute_ms / 1e3] * steps),
    }


FACTS = ScriptFacts(
    spans=spans(20, 10),
    steps=10,
    records=100,
    compute_cores=1.0,
    num_cores=4,
    num_threads=4,
    loader=LoaderFacts(workers=0, batch_size=10),
    items=ITEMS,
    epochs=2,
)
LINE = PythonLine("step", "/a/train.py", 7, "loss_of", "return loop(x)", 0.6)
FINE = replace(FACTS, spans=spans(0.1, 10), items=None)


def rules(facts):
    return [verdict.rule for verdict in script_verdicts(facts)]


def test_the_headline_names_the_largest_part_first():
    assert script_limit(FACTS) == (
        "Data limits training: wait takes 67 % of a step (up to 3.00 times as fast if no step "
        "waited)."
    )
    assert script_limit(FINE).startswith("Computing limits training: forward takes 99 % of a step.")
    some = replace(FACTS, spans=spans(2, 10))
    assert "and 17 % waits for data" in script_limit(some)
    assert "No training step" in script_limit(replace(FACTS, steps=0))
    assert script_verdicts(replace(FACTS, steps=0)) == []


def test_workers_and_a_store_are_advised_to_a_script_that_waits():
    assert set(rules(FACTS)) == {"pack_items", "more_workers"}
    assert gain(FACTS, workers=4, start_s=0.0) == pytest.approx(3.0)
    slower = replace(FACTS, items=replace(ITEMS, item_s=8e-3), spans=spans(80, 10))
    assert gain(slower, workers=4, start_s=0.0) == pytest.approx(90 / 22.5)


@pytest.mark.parametrize(
    ("facts", "rule"),
    [
        (replace(FINE, loader=LoaderFacts(16, 10)), "fewer_workers"),
        (replace(FINE, num_threads=16), "fewer_threads"),
        (replace(FINE, others_cores=3.0), "other_programs"),
        (replace(FINE, validation_s=1.0), "rarer_validation"),
        (replace(FINE, lines=(LINE,)), "python_lines"),
        (replace(FACTS, loader=LoaderFacts(4, 10), start_s=0.1), "persistent_workers"),
        (
            replace(
                FACTS, items=replace(ITEMS, decoded=(900, 1200), size=(224, 224), decode_share=0.8)
            ),
            "smaller_images",
        ),
        (
            replace(FINE, gpu="a GPU", spans={**spans(0.1, 10), "copy": Span.of([2e-3] * 10)}),
            "pinned_memory",
        ),
    ],
)
def test_each_cause_has_its_rule(facts, rule):
    assert rule in rules(facts)


@pytest.mark.parametrize(
    ("rough", "rule"),
    [({"num_threads": 16}, "fewer_threads"), ({"others_cores": 3.0}, "other_programs")],
)
def test_what_makes_figures_of_computing_rough_comes_first_unless_data_limits(rough, rule):
    assert rules(replace(FINE, **rough))[0] == rule
    assert rules(replace(FACTS, **rough))[-1] == rule  # data limits
