import pytest

from framework.diagnosis.facts import Load, Repack, Verdict
from tests.diagnosis.cases import FINE, facts


def test_headroom_is_what_data_that_costs_nothing_would_bring():
    assert facts().headroom == 4.0
    assert facts().data_limits
    assert not facts(**FINE).data_limits
    assert facts(whole=2000.0).headroom == 1.0


def test_headroom_is_no_more_than_what_data_takes_of_a_step():
    gathered = facts(prepare=1000000.0, wait=0.03)
    assert gathered.headroom == pytest.approx(1 / (1 - 0.03 - 250 / 1e6))
    assert facts(prepare=None, wait=0.03).headroom == 4.0


@pytest.mark.parametrize(
    ("two", "wanted"),
    [(600.0, 0.0), (300.0, 1.0), (450.0, 0.5), (900.0, 0.0), (200.0, 1.0), (None, 0.0)],
)
def test_the_share_of_the_lock_is_measured_by_two_threads(two, wanted):
    assert facts(prepare_two=two).lock_share == pytest.approx(wanted)


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


REPACK = Repack(
    "folder",
    {"train": ("my photos", "packed"), "val": ("val", "val-packed")},
    {"encode": "raw", "size": [64, 64]},
)


def test_packing_is_a_command_for_each_split():
    train, val = REPACK.commands()
    assert train == [
        *("pack", "input=folder", 'input.path="my photos"', "pack.encode=raw", "pack.size=[64,64]"),
        *("output=hdf5", "output.path=packed.h5"),
    ]
    assert val[2] == "input.path=val"
    assert val[-1] == "output.path=val-packed.h5"


def test_training_reads_what_was_packed():
    verdict = Verdict("r", "s", "w", 2.0, ("workers.num=2",), REPACK)
    stores = ["data=hdf5", "data.train=packed.h5", "data.val=val-packed.h5"]
    assert verdict.words == [*stores, "workers.num=2"]


def test_several_validation_sets_are_packed_one_by_one():
    val = {"val.a": ("a", "a-packed"), "val.b": ("b", "b-packed")}
    repack = Repack("folder", {"train": ("photos", "packed"), **val})
    assert len(repack.commands()) == 3
    assert repack.overrides()[1:] == [
        "data.train=packed.h5",
        "data.val={a:a-packed.h5,b:b-packed.h5}",
    ]
