from framework.schedule.constant import Constant


def test_the_rate_stays_all_the_way():
    assert {Constant()(step, 10) for step in range(10)} == {1.0}
