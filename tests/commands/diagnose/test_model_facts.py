import pytest

from framework.commands.diagnose.model_facts import Load, gain, load_of
from tests.commands.diagnose.cases import facts


@pytest.mark.parametrize(
    ("workers", "kind", "lock", "ahead", "wanted"),
    [
        (0, "thread", 0.0, False, 5.0),  # one after the other
        (0, "thread", 0.0, True, 4.0),  # beside each other: the slower one
        (2, "thread", 0.0, False, 2.0),
        (2, "thread", 1.0, False, 4.0),  # they take turns
        (2, "process", 1.0, False, 2.0),
        (16, "process", 0.0, False, 1.25),  # as many as there are cores, which computing wants too
    ],
)
def test_a_step_takes_as_long_as_its_slowest_part(workers, kind, lock, ahead, wanted):
    assert Load(4.0, 1.0, 1.0, 4, workers, kind, lock, ahead).step_s == pytest.approx(wanted)


def test_cores_are_shared_with_the_computation():
    assert Load(4.0, 2.0, 2.0, 2, 2, "thread", 0.0, True).step_s == pytest.approx(4.0)


def test_a_gain_is_no_more_than_data_that_costs_nothing():
    assert gain(facts(), load_s=1e-9) == pytest.approx(4.0, rel=0.7)
    assert gain(facts(), load_s=1e-9) <= facts().headroom


def test_nothing_is_predicted_from_nothing():
    assert load_of(facts(rates={"prepare": None})) is None
    assert gain(facts(rates={"prepare": None}), workers=9) == 1.0
