"""Early stopping and the time budget."""

import pytest

from framework.contracts.training import Moment
from framework.train.goal import Goal
from framework.train.stop_watchers import EarlyStop, TimeBudget

F1 = Goal("f1", True, "stop.metric")


def validation(step, value, is_best=False):
    return Moment(step, 1, 0.0, metrics={"loss": 1.0, "f1": value}, is_best=is_best)


def reasons(watcher, values):
    return [watcher.after_validation(validation(n, value)) for n, value in enumerate(values, 1)]


def test_a_run_ends_after_so_many_validations_without_a_better_one():
    *before, reason = reasons(EarlyStop(2, F1), [0.1, 0.5, 0.4, 0.6, 0.6, 0.2])
    assert before == [None] * 5
    assert reason == "no better f1 in 2 validations (best: 0.6 after step 4)"


def test_a_lower_metric_may_be_the_better_one():
    assert reasons(EarlyStop(2, Goal("f1", False)), [0.5, 0.4, 0.3, 0.2]) == [None] * 4


def test_without_a_metric_it_counts_what_is_not_the_best():
    stop = EarlyStop(2)
    assert stop.after_validation(validation(5, 0.1, is_best=True)) is None
    assert stop.after_validation(validation(10, 0.9)) is None
    reason = stop.after_validation(validation(15, 0.9))
    assert reason == "no better validation in 2 validations (best: step 5)"


@pytest.mark.parametrize("done", range(6))
def test_patience_goes_on_in_a_resumed_run(done):
    values = [0.1, 0.5, 0.4, 0.6, 0.6, 0.2]
    whole = reasons(EarlyStop(2, F1), values)
    first, second = EarlyStop(2, F1), EarlyStop(2, F1)
    reasons(first, values[:done])
    second.load_state_dict(first.state_dict())
    rest = [second.after_validation(validation(n + 1, values[n])) for n in range(done, 6)]
    assert rest == whole[done:]


def test_patience_begins_anew_for_another_metric():
    first, second = EarlyStop(2, F1), EarlyStop(2, Goal("loss", False))
    reasons(first, [0.5, 0.4])
    second.load_state_dict(first.state_dict())
    assert (second.num_worse, second.best_step) == (0, 0)


def test_the_time_budget_ends_a_run_at_a_report_or_a_validation():
    budget = TimeBudget(90.0)
    for look in (budget.after_report, budget.after_validation):
        assert look(Moment(1, 1, 89.9)) is None
        assert look(Moment(2, 1, 90.0)) == "it has trained for 90 s (at most 90 s)"
