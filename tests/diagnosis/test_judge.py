import re

import pytest

from framework.config.paths import ROOT
from framework.diagnosis.facts import Verdict
from framework.diagnosis.judge import cause_of, limit_of, shares_of, verdicts_of
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
        (
            {"image_size": (3000, 4000), "workers": 4, "transform": "resize", "size": (64, 64)},
            "repack_smaller",
        ),
        ({**FINE}, "data_is_fine"),
        ({**FINE, "workers": 64, "num_cores": 2}, "lower_workers"),
    ],
)
def test_the_planted_cause_comes_first(changes, first):
    assert verdicts_of(facts(**changes))[0].rule == first


def test_the_limit_names_its_cause():
    slow = facts(workers=0, loader="plain")
    cause = cause_of(slow, verdicts_of(slow), [])
    assert limit_of(slow, cause).startswith(
        "Data limits training: waiting for data takes 75 % of a step (computing 25 %). "
        "Without it, training would be up to 4.0 times as fast. No workers"
    )
    fine = facts(**FINE)
    assert limit_of(fine, cause_of(fine, [], [])).startswith(
        "Computing limits training: computing takes 99 % of a step. "
        "Data is not your problem: at most 1 % to win"
    )


WAIT = {"parts": ("wait",)}
COMPUTE = {"parts": ("forward", "backward", "optimizer", "compute")}


def test_the_cause_is_that_of_the_largest_part():
    slow = facts(workers=0, loader="plain")
    fine = facts(**FINE)
    compute = [Verdict("larger_batch", "l", "w", 2.0, tried=True, **COMPUTE)]
    assert cause_of(slow, compute, []) is None
    assert cause_of(fine, compute, []).rule == "larger_batch"
    untried = [Verdict("larger_batch", "l", "w", 2.0, modeled=2.0, **COMPUTE)]
    assert cause_of(fine, [], untried).rule == "larger_batch"


@pytest.mark.parametrize(("gain", "cause"), [(1.4, "decode_jpeg"), (1.5, "slow_records")])
def test_a_few_slow_records_are_the_cause_if_most_of_a_step_waits_for_them(gain, cause):
    slow = facts(workers=0, loader="plain")
    decoding = Verdict("decode_jpeg", "d", "w", 4.0, tried=True, modeled=4.0, **WAIT)
    records = Verdict("slow_records", "s", "w", gain, modeled=gain, **WAIT)
    assert cause_of(slow, [decoding, records], []).rule == cause


SPANS_S = {"wait": 1e-5, "copy": 1e-5, "forward": 0.04, "backward": 0.02, "optimizer": 0.004}


def test_data_takes_what_a_step_takes_longer_than_computing():
    shares = shares_of(facts(compute_spans_s=SPANS_S))
    assert list(shares) == ["wait", "forward", "backward", "optimizer", "copy"]
    assert shares["wait"] == pytest.approx(0.75)
    assert shares["forward"] == pytest.approx(0.25 * 40 / 64)
    assert sum(shares.values()) == pytest.approx(1)


def test_a_trial_that_gains_proves_a_share():
    tried = [Verdict("lower_workers", "s", "w", 5.0, tried=True, parts=("wait",))]
    assert shares_of(facts(**FINE), tried)["wait"] == pytest.approx(0.8)
    unproved = [Verdict("lower_workers", "s", "w", 5.0, parts=("wait",))]
    assert shares_of(facts(**FINE), unproved)["wait"] < 0.02


def test_the_headline_says_if_reading_slows_the_step():
    known = facts(**SLOWED)
    assert limit_of(known, None).startswith(
        "Data limits training: computing more slowly while data is read takes 42 % of a step ("
    )
