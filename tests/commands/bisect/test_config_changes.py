"""What differs between two configurations."""

from hypothesis import given
from hypothesis import strategies as st

from framework.commands.bisect.config_changes import (
    applied,
    changes_of,
    reversed_changes,
)

BEFORE = {
    "seed": 0,
    "epochs": 1,
    "loader": {"_target_": "a.Plain"},
    "optim": {"_target_": "o.SGD", "lr": 0.1, "momentum": 0.9},
    "data": {"train": "a.h5", "val": "a.h5"},
    "shuffle": 1,
}
AFTER = {
    "seed": 0,
    "epochs": 2,
    "loader": {"_target_": "a.Prefetch", "depth": 2},
    "optim": {"_target_": "o.SGD", "lr": 0.2, "nesterov": True},
    "data": {"train": "b.h5", "val": "b.h5"},
    "shuffle": True,
}


def test_a_block_with_another_target_is_one_change():
    names = [change.name for change in changes_of(BEFORE, AFTER)]
    assert names == [
        *("epochs", "loader", "optim.lr", "optim.momentum", "optim.nesterov"),
        *("data.train", "data.val", "shuffle"),
    ]


def test_what_no_training_step_uses_is_not_measured():
    names = {change.name for change in changes_of(BEFORE, AFTER) if not change.is_measured}
    assert names == {"epochs", "data.val"}


def test_a_part_of_the_changes_is_made_and_the_rest_stays():
    chosen = [change for change in changes_of(BEFORE, AFTER) if change.name == "optim.momentum"]
    assert applied(BEFORE, chosen)["optim"] == {"_target_": "o.SGD", "lr": 0.1}
    assert BEFORE["optim"]["momentum"] == 0.9


VALUES = st.recursive(
    st.integers(0, 2) | st.none() | st.lists(st.integers(0, 1), max_size=2),
    lambda children: st.dictionaries(st.sampled_from("abc"), children, max_size=3),
)
BLOCKS = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


@given(BLOCKS, BLOCKS)
def test_all_changes_lead_to_the_other_side_and_back(before, after):
    changes = changes_of(before, after)
    assert applied(before, changes) == after
    assert applied(after, reversed_changes(changes)) == before
