import pytest

from framework.commands.diagnose.machine_facts import MachineFacts
from framework.commands.diagnose.machine_rules import (
    RULES,
    cold_disk,
    cpu_quota,
    few_cores,
    network_disk,
    opencv_threads,
    other_programs,
    too_many_threads,
)
from framework.measure.disk import DiskRate
from framework.measure.machine_watch import MachineUse, Program
from tests.commands.diagnose.cases import facts

MANY = {"num_threads": 16, "fewer_threads": 4, "fewer_threads_gain": 10.0}
BESIDE = {"others_cores": 2.0, "own_cores": 2.0, "waited_cores": 2.0}
SLOW_DISK = DiskRate(5e6, 6e6)
FAR_DISK = DiskRate(5e6, 35e6)
# Reading a record of 50 kB at 5 MB/s takes 10 ms.
WAITING = {
    "read": 100.0,
    "read_cores": 0.05,
    "prepare": 80.0,
    "prepare_cores": 0.2,
    "whole": 80.0,
    "wait": 0.9,
}
STORE = {"form": "hdf5", "cached": 0.1}


def machine(use=None, **changes) -> MachineFacts:
    use = MachineUse(1.0, **(use or {}))
    return MachineFacts(use, **{"allowed_cores": 4, "all_cores": 4, **changes})


def case(use=None, settings=None, rates=None, storage=None, **changes):
    known = {"settings": settings, "rates": rates, "storage": storage}
    return facts(**known, on_machine=machine(use, **changes))


@pytest.mark.parametrize("rule", RULES)
def test_a_quiet_machine_gives_no_cause(rule):
    assert rule(case()) is None
    assert rule(facts()) is None


def test_threads_are_limited_to_the_cores_by_the_variable_and_the_workers_by_a_key():
    verdict = too_many_threads(case(settings={"workers": 16}, **MANY))
    assert verdict.threads == 4
    assert verdict.overrides == ("workers.num=4",)
    assert "16 workers take the same cores" in verdict.says


def test_too_many_threads_gain_as_much_as_computing_takes_of_a_step():
    rates = {"compute": 100.0, "whole": 80.0}
    verdict = too_many_threads(case(rates=rates, **MANY))
    assert verdict.gain == pytest.approx(1 / (0.8 / 10 + 0.2))


def test_threads_of_opencv_are_switched_off_in_the_users_code():
    verdict = opencv_threads(case(opencv_threads=8, no_opencv_gain=1.5))
    assert "setNumThreads(0)" in verdict.edit
    assert verdict.gain == 1.5


def test_other_programs_are_named_with_their_cores():
    use = {**BESIDE, "programs": (Program(17, "blender", 1.8),)}
    verdict = other_programs(case(use))
    assert "blender (17) 1.8" in verdict.says
    assert verdict.gain == pytest.approx(2.0)
    assert "OMP_NUM_THREADS" not in verdict.action


def test_a_quota_is_a_cause_if_it_stops_the_run():
    use = {"own_cores": 1.0, "waited_cores": 1.5, "throttled_share": 0.9}
    verdict = cpu_quota(case(use, quota_cores=1.0, num_threads=4))
    assert verdict.gain == pytest.approx(2.5)
    assert "--cpus=4" in verdict.action


def test_without_a_quota_computing_has_more_threads():
    """A run has no more threads than its quota has cores, so none of them waits."""
    use = {"own_cores": 0.5, "waited_cores": 0.5, "throttled_share": 0.9}
    rates = {"compute": 100.0, "compute_cores": 0.5, "whole": 80.0}
    verdict = cpu_quota(case(use, rates=rates, quota_cores=0.5, num_threads=1))
    # The rest of a step gets both cores of which it waits for one.
    assert verdict.gain == pytest.approx(1 / (0.8 / 8 + 0.2 / 2))


def test_cores_outside_the_mask_are_a_cause_if_they_gain():
    verdict = few_cores(case(allowed_cores=1, all_cores_gain=1.9))
    assert "taskset --cpu-list 0-3" in verdict.action
    assert verdict.gain == 1.9


@pytest.mark.parametrize(
    ("disk", "rule", "other"),
    [("solid state", cold_disk, network_disk), ("network", network_disk, cold_disk)],
)
def test_a_store_that_fits_is_staged_into_memory(disk, rule, other):
    known = case(storage={**STORE, "disk": disk}, rates=WAITING, disk=SLOW_DISK)
    assert rule(known).overrides == ("data.stage=ram",)
    assert rule(known).gain > 2
    assert other(known) is None


def test_many_readers_wait_together_and_then_share_the_cores():
    rates = {**WAITING, "compute": 10_000.0, "prepare_cores": 0.8, "wait": 1.0}
    storage = {**STORE, "form": "folder"}
    verdict = cold_disk(case(storage=storage, rates=rates, disk=FAR_DISK))
    record_s = 50e3 / 5e6 * 0.95 / 7 + 0.8 / 80 / 4
    assert verdict.gain == pytest.approx(1 / 80 / record_s, rel=0.05)


def test_readers_and_the_step_share_the_cores():
    storage = {**STORE, "form": "folder"}
    gains = [
        cold_disk(case(storage=storage, rates={**WAITING, "compute": rate}, disk=FAR_DISK)).gain
        for rate in (1e3, 1e6)
    ]
    assert 1 < gains[0] < gains[1]


def test_a_disk_with_a_full_line_needs_a_copy():
    storage = {**STORE, "num_records": 10**8}
    verdict = cold_disk(case(storage=storage, rates=WAITING, disk=SLOW_DISK))
    assert "local disk" in verdict.action
    assert not verdict.can_try


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": {**WAITING, "read_cores": 0.9}},
        {"rates": {**WAITING, "prepare": 5.0, "whole": 5.0}},
        {"storage": {**STORE, "disk": "memory"}},
        {"disk": None},
    ],
)
def test_reading_that_does_not_wait_is_no_cause(changes):
    known = {"storage": {**STORE, "disk": "solid state"}, "rates": WAITING, "disk": SLOW_DISK}
    assert cold_disk(case(**{**known, **changes})) is None
