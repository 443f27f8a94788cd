import pytest

from framework.commands.diagnose.run_facts import RunFacts


@pytest.mark.parametrize(
    ("intervals", "per_step"),
    [
        ((), 0.0),
        ((10,), 0.1),
        ((10, 20), 0.1),
        ((10, 15), 0.1 + 1 / 15 - 1 / 30),
    ],
)
def test_saves_that_coincide_count_once(intervals, per_step):
    run = RunFacts(100, save_every={str(every): every for every in intervals})
    assert run.saves_per_step == pytest.approx(per_step, rel=0.01)


def test_shares_are_of_a_run_with_all_that_it_does():
    run = RunFacts(
        100,
        validate_s=1.0,
        validate_every=100,
        save_s=0.5,
        save_every={"checkpoint.every_steps": 50},
        report_s={"jsonl": 0.001, "mine": 0.009},
        report_every=1,  # the ends of epochs coincide with it
    )
    assert run.costs_s == pytest.approx({"validating": 0.01, "saving": 0.01, "reporting": 0.01})
    assert run.shares(0.01) == pytest.approx(dict.fromkeys(run.costs_s, 0.25))
