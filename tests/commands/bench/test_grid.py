from collections import Counter

from framework.commands.bench.grid import combinations, label, schedule


def test_the_last_key_changes_fastest_and_nothing_comes_twice():
    found = combinations({"data": ["hdf5", "lmdb", "hdf5"], "loader": ["plain", "stream"]})
    assert [tuple(choice.values()) for choice in found] == [
        ("hdf5", "plain"),
        ("hdf5", "stream"),
        ("lmdb", "plain"),
        ("lmdb", "stream"),
    ]


def test_without_a_sweep_there_is_one_cell():
    assert combinations({}) == [{}]
    assert label({}) == "as given"
    assert label({"data": "hdf5", "loader": "plain"}) == "data=hdf5 loader=plain"


def test_every_cell_is_measured_once_a_repeat():
    found = list(schedule(5, 3, seed=0))
    assert Counter(found) == Counter((repeat, cell) for repeat in range(3) for cell in range(5))
    assert [repeat for repeat, _ in found] == sorted(repeat for repeat, _ in found)


def test_the_order_is_another_in_each_repeat_and_the_same_for_a_seed():
    orders = [[cell for at, cell in schedule(8, 4, seed=1) if at == repeat] for repeat in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert list(schedule(8, 4, seed=1)) == list(schedule(8, 4, seed=1))
    assert list(schedule(8, 4, seed=1)) != list(schedule(8, 4, seed=2))
