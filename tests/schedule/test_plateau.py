import pickle

import pytest

from framework.errors import ConfigError
from framework.schedule.plateau import Plateau


def plateau(**changes):
    words = {"metric": "loss", "mode": "min", "factor": 0.5, "patience": 1, "threshold": 0.0}
    return Plateau(**{**words, **changes})


def factors(schedule, *values):
    """Return the factor after each validation."""
    result = []
    for value in values:
        schedule.follow(value)
        result.append(schedule(10, 100))
    return result


@pytest.mark.parametrize(
    ("changes", "values", "expected"),
    [
        pytest.param(
            {"patience": 1},
            [1.0, 2.0, 2.0, 2.0, 2.0, 0.5],
            [1, 1, 0.5, 0.5, 0.25, 0.25],
            id="patience",
        ),
        pytest.param({"mode": "max"}, [1.0, 2.0, 1.5], [1, 1, 0.5], id="greater is better"),
        pytest.param(
            {"threshold": 0.1}, [1.0, 0.95, 0.8], [1, 0.5, 0.5], id="a small improvement is none"
        ),
        pytest.param(
            {"threshold": 0.1}, [-10.0, -10.5, -11.5], [1, 0.5, 0.5], id="share of a negative value"
        ),
        pytest.param(
            {"threshold": 0.1, "mode": "max"},
            [-10.0, -9.5, -8.5],
            [1, 0.5, 0.5],
            id="negative, max",
        ),
        pytest.param(
            {"threshold": 1e-4},
            [-10.0, -9.9995, -9.999, -9.9985],
            [1, 0.5, 0.25, 0.125],
            id="a negative value that becomes worse",
        ),
        pytest.param({"threshold": 1.0}, [5.0, -0.5], [1, 1], id="the first value is the best"),
        pytest.param({"final": 0.4}, [1.0, 1.0, 1.0], [1, 0.5, 0.4], id="a least factor"),
        pytest.param({"cooldown": 1}, [1.0] * 4, [1, 0.5, 0.5, 0.25], id="a pause after a fall"),
    ],
)
def test_the_rate_falls_when_the_metric_stops_improving(changes, values, expected):
    assert factors(plateau(**{"patience": 0, **changes}), *values) == expected


def test_it_says_whether_the_rate_has_changed():
    schedule = plateau(patience=0)
    assert [schedule.follow(1.0), schedule.follow(1.0)] == [False, True]


def test_it_warms_up_to_the_present_rate():
    schedule = plateau(warmup_steps=4)
    assert [schedule(step, 100) for step in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_state_continues_at_any_validation(count):
    values = [1.0, 2.0, 2.0, -0.9, 2.0, -0.91, 2.0]
    whole, half, again = (plateau(cooldown=1, threshold=0.1) for _ in range(3))
    factors(half, *values[:count])
    again.load_state_dict(pickle.loads(pickle.dumps(half.state_dict())))
    assert factors(again, *values[count:]) == factors(whole, *values)[count:]
    assert again.state_dict() == whole.state_dict()


def test_with_other_data_the_best_is_forgotten_and_the_rate_stays():
    schedule = plateau(patience=0)
    factors(schedule, 1.0, 1.0)
    schedule.forget_best()
    assert factors(schedule, 7.0, 8.0) == [0.5, 0.25]


def test_of_several_sets_the_first_has_the_metric():
    assert plateau().value_of({"accuracy": 1.0, "loss": 2.0}) == 2.0
    assert plateau().value_of({"a.loss": 3.0, "b.loss": 4.0}) == 3.0
    assert plateau(metric="b.loss").value_of({"a.loss": 3.0, "b.loss": 4.0}) == 4.0


def test_a_metric_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"C314.*metric = f1: validation has loss, accuracy"):
        plateau(metric="f1").value_of({"loss": 1.0, "accuracy": 1.0})


@pytest.mark.parametrize("changes", [{"mode": "up"}, {"factor": 1.0}, {"patience": -1}])
def test_what_cannot_be_is_refused(changes):
    with pytest.raises(ConfigError, match=f"C314.*schedule.{next(iter(changes))}"):
        plateau(**changes)
