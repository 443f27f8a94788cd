from framework.schedule.constant import Constant


def test_the_rate_stays_all_the_way():
    assert {Constant()(step, 10) for step in range(10)} == {1.0}


def test_a_warm_up_rises_in_a_line():
    assert [Constant(4)(step, 10) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
