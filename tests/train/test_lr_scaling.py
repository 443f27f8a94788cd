import pytest

from framework.train.lr_scaling import RULES, Scaling, scaling_of


@pytest.mark.parametrize(
    ("rule", "factor"), [("none", 1), ("linear", 8), ("sqrt", 8**0.5), ("cube_root_squared", 4)]
)
def test_the_rate_grows_by_a_power_of_the_batches_ratio(rule, factor):
    assert Scaling(rule, 32, 256).factor == pytest.approx(factor)


@pytest.mark.parametrize("rule", RULES)
def test_the_same_batch_changes_no_bit(rule):
    assert 0.1 * Scaling(rule, 64, 64).factor == 0.1


def test_a_warm_up_covers_as_many_records():
    assert Scaling("linear", 32, 256).steps(80) == 10
    assert Scaling("linear", 256, 32).steps(10) == 80
    assert Scaling("none", 32, 256).steps(80) == 80


def test_a_warm_up_never_vanishes_nor_appears():
    assert Scaling("sqrt", 1, 1000).steps(3) == 1
    assert Scaling("sqrt", 1, 1000).steps(0) == 0


def test_blocks_without_the_keys_change_nothing():
    assert scaling_of({"lr": 0.1}, 96) == Scaling("none", 96, 96)
    assert scaling_of({"scaling": None, "reference_batch_size": None}, 96).factor == 1
