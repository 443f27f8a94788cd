import pytest

from framework.contracts.records import Manifest
from framework.pack.jobs import PackPlan
from framework.pack.pack_store import needed_bytes, pack
from tests.input.inputs import COUNT, FIELDS, packing

PLAN = PackPlan(1000, 100, 10, 5000.0)
IMAGES = Manifest(1000, FIELDS)
ARRAYS = Manifest(1000, {"label": FIELDS["label"]})


def test_joining_takes_room_for_the_parts_and_the_file():
    folder, file = (needed_bytes(PLAN, ARRAYS, 10, one_file, ".h5") for one_file in (False, True))
    assert file == pytest.approx(2 * folder)
    assert needed_bytes(PLAN, IMAGES, 10, True, ".h5") == pytest.approx(3 * folder)
    assert needed_bytes(PLAN, ARRAYS, 0, False, ".h5") == 0


@pytest.mark.parametrize("path", ["x.h5", "x.lmdb"])
def test_the_estimate_is_near_the_truth(path):
    packed = pack(packing(path, one_file=False))
    plan = PackPlan(COUNT, COUNT, 1, 1163.0)
    assert needed_bytes(plan, IMAGES, 1, False, path[1:]) == pytest.approx(
        packed.num_bytes, rel=0.25
    )
