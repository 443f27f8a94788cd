from framework.commands.bench.grid import (
    BenchCell,
    BenchPlan,
    combinations,
    measurements,
    schedule,
)

PLAN = BenchPlan("loader", 3, 2.0, 0.5, seed=0)
CELLS = [
    BenchCell({"data": "hdf5"}, {}),
    BenchCell({"data": "dali"}, {}, illegal="error[R103]: DALI"),
    BenchCell({"data": "lmdb"}, {}),
]
FOUND = {"windows": [1.0, 3.0, 2.0], "spans_s": {"wait": 1.0}, "yardstick_per_s": 9.0}


def test_the_last_key_changes_fastest_and_nothing_comes_twice():
    choices = combinations({"data": ["hdf5", "lmdb", "hdf5"], "loader": ["plain", "stream"]})
    assert [tuple(choice.values()) for choice in choices] == [
        ("hdf5", "plain"),
        ("hdf5", "stream"),
        ("lmdb", "plain"),
        ("lmdb", "stream"),
    ]


def test_the_order_is_another_in_each_repeat_and_the_same_for_a_seed():
    orders = [[cell for at, cell in schedule(8, 4, seed=1) if at == repeat] for repeat in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert list(schedule(8, 4, seed=1)) == list(schedule(8, 4, seed=1))
    assert list(schedule(8, 4, seed=1)) != list(schedule(8, 4, seed=2))


def lines_of(lmdb: dict) -> tuple[list[dict], int]:
    """Return the lines if the processes for lmdb answer this, and the number of all processes."""
    asked = []

    def ask(cell, plan):
        asked.append(cell)
        return lmdb if cell.choice["data"] == "lmdb" else FOUND

    return list(measurements(CELLS, PLAN, ask)), len(asked)


def test_every_cell_has_a_line_a_repeat_with_its_median_window():
    lines, num_asked = lines_of(FOUND)
    assert lines[0] == {"cell": {"data": "dali"}, "illegal": "error[R103]: DALI"}
    measured = sorted((line["cell"]["data"], line["repeat"]) for line in lines[1:])
    assert measured == [(data, repeat) for data in ("hdf5", "lmdb") for repeat in range(3)]
    assert {line["records_per_s"] for line in lines[1:]} == {2.0}
    assert num_asked == 6


def test_a_cell_that_turns_out_illegal_is_not_tried_again():
    lines, num_asked = lines_of({"illegal": "error[C118]: no"})
    assert [line for line in lines if line["cell"] == {"data": "lmdb"}] == [
        {"cell": {"data": "lmdb"}, "illegal": "error[C118]: no"}
    ]
    assert num_asked == 4


def test_a_cell_that_breaks_is_named():
    lines, _ = lines_of({"failed": "RuntimeError: boom"})
    reasons = [line["illegal"] for line in lines if line["cell"] == {"data": "lmdb"}]
    assert len(reasons) == 1
    assert reasons[0].startswith("error[R185]: data=lmdb: RuntimeError: boom; ")
