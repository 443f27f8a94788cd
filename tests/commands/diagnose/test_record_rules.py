import pytest

from framework.commands.diagnose.record_rules import slow_records
from tests.commands.diagnose.cases import FINE, facts

RECORD = {"name": "a/huge.jpg", "mean_s": 0.5, "num_reads": 2, "size_bytes": 9_000_000}
BLOCK = {
    "records": [RECORD],
    "num_slow": 2,
    "num_records": 1000,
    "slow_s": 1.0,
    "read_s": 2.0,
    "usual_s": 0.001,
    "wait_s": 4.0,
    "slow_wait_s": 3.0,
    "saved_s": 2.0,
    "numbers": [7],
}
LIMITED = {"compute": 1000.0, "whole": 250.0, "wait": 0.7}


def test_slow_records_are_named_with_what_they_cost():
    slow = facts(slow_records=BLOCK, rates=LIMITED)
    verdict = slow_records(slow)
    assert slow.headroom == pytest.approx(4)
    assert verdict.gain == pytest.approx(1 / (1 - 0.75 / 2))
    assert "2 of 1,000 reads" in verdict.says
    assert "75 % of the waiting was for their batches: a/huge.jpg (500 ms, 9.0 MB)" in verdict.says


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"slow_records": {**BLOCK, "num_slow": 100}},
        {"slow_records": {**BLOCK, "saved_s": 0.01}},
        {"slow_records": BLOCK, "rates": FINE},
    ],
    ids=["none is slow", "many are slow", "they cost nothing", "data does not limit"],
)
def test_otherwise_they_are_no_cause(changes):
    assert slow_records(facts(**changes)) is None


@pytest.mark.parametrize(
    ("block", "others", "trial"),
    [
        ({"num_slow": 6, "numbers": [7, 9]}, {}, 'select="record not in [7, 9]"'),
        (
            {"num_slow": 6, "numbers": [7, 9]},
            {"settings": {"select": "a == 1 or b == 2"}},
            'select="(a == 1 or b == 2) and record not in [7, 9]"',
        ),
        ({"num_slow": 5, "numbers": [7, 9]}, {}, None),  # there may be more
        ({"num_slow": 6, "numbers": [7, 9]}, {"storage": {"form": "dataset"}}, None),
    ],
)
def test_a_trial_leaves_the_slow_records_out(block, others, trial):
    verdict = slow_records(facts(slow_records={**BLOCK, **block}, rates=LIMITED, **others))
    assert verdict.trial == ((trial,) if trial else ())
    assert verdict.has_trial == bool(trial)
    assert not verdict.can_try
