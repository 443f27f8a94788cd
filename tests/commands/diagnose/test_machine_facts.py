import pytest

from framework.commands.diagnose.machine_facts import MachineFacts
from framework.measure.machine_watch import MachineUse


@pytest.mark.parametrize(
    ("own", "waited", "demand"),
    [(2.0, 0.0, 1.0), (1.0, 0.5, 1.5), (1.0, 1.0, 2.0), (0.5, 30.0, 4.0), (0.0, 0.0, 1.0)],
)
def test_the_demand_is_at_most_the_cores_of_the_mask(own, waited, demand):
    use = MachineUse(1.0, own_cores=own, waited_cores=waited)
    assert MachineFacts(use, allowed_cores=2).demand == pytest.approx(demand)


@pytest.mark.parametrize(
    ("own", "waited", "others", "gain"),
    # The threads of too many workers wait for each other, whatever other programs do.
    [(1.0, 1.0, 1.0, 2.0), (1.6, 6.0, 0.4, 1.25), (0.8, 0.0, 1.0, 1.0), (1.6, 6.0, 0.0, 1.0)],
)
def test_other_programs_give_back_at_most_what_they_take(own, waited, others, gain):
    use = MachineUse(1.0, own_cores=own, waited_cores=waited, others_cores=others)
    assert MachineFacts(use, allowed_cores=4).undisturbed_gain == pytest.approx(gain)


@pytest.mark.parametrize(
    ("fewer", "faster", "cores", "gain"),
    # One thread is 1.5 times as fast as two beside others, on three quarters of a core.
    [(1, 1.5, 0.75, 4.0), (1, 0.2, 0.9, 1.0), (2, 1.0, 1.0, 1.0)],
)
def test_threads_with_cores_of_their_own_share_the_work(fewer, faster, cores, gain):
    known = {"fewer_threads": fewer, "fewer_threads_gain": faster, "fewer_threads_cores": cores}
    assert MachineFacts(num_threads=2, **known).own_cores_gain == pytest.approx(gain)
