import pytest

from framework.contracts.span import RankSpan
from framework.diagnosis.judge import rank_cause, verdicts_of
from framework.diagnosis.step_rules import MACHINE_RULES
from framework.measure.host import DiskRate
from framework.measure.usage import Program
from tests.diagnosis.cases import LATE, SPANS, facts, rank_facts, verdict_of

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


def test_a_quiet_machine_gives_no_cause():
    assert not [verdict for rule in MACHINE_RULES for verdict in rule(facts())]


def test_threads_are_limited_to_the_cores_by_the_variable_and_the_workers_by_a_key():
    verdict = verdict_of("too_many_threads", facts(workers=16, **MANY))
    assert verdict.threads == 4
    assert verdict.overrides == ("workers.num=4",)
    assert "16 workers take the same cores" in verdict.says


def test_threads_of_opencv_are_switched_off_in_the_users_code():
    verdict = verdict_of("opencv_threads", facts(opencv_threads=8, no_opencv_gain=1.5))
    assert "setNumThreads(0)" in verdict.edit
    assert verdict.gain == 1.5


def test_other_programs_are_named_with_their_cores():
    use = {**BESIDE, "programs": (Program(17, "blender", 1.8),)}
    verdict = verdict_of("other_programs", facts(**use))
    assert "blender (17) 1.8" in verdict.says
    assert verdict.gain == pytest.approx(2.0)
    assert "OMP_NUM_THREADS" not in verdict.action


def test_a_quota_is_a_cause_if_it_stops_the_run():
    use = {"own_cores": 1.0, "waited_cores": 1.5, "throttled_share": 0.9}
    verdict = verdict_of("cpu_quota", facts(**use, quota_cores=1.0, num_threads=4))
    assert verdict.gain == pytest.approx(2.5)
    assert "--cpus=4" in verdict.action


def test_without_a_quota_computing_has_more_threads():
    """A run has no more threads than its quota has cores, so none of them waits."""
    use = {"own_cores": 0.5, "waited_cores": 0.5, "throttled_share": 0.9}
    rates = {"compute": 100.0, "compute_cores": 0.5, "whole": 80.0}
    verdict = verdict_of("cpu_quota", facts(**use, **rates, quota_cores=0.5, num_threads=1))
    # The rest of a step gets both cores of which it waits for one.
    assert verdict.gain == pytest.approx(1 / (0.8 / 8 + 0.2 / 2))


def test_cores_outside_the_mask_are_a_cause_if_they_gain():
    verdict = verdict_of("few_cores", facts(allowed_cores=1, all_cores_gain=1.9))
    assert "taskset --cpu-list 0-3" in verdict.action
    assert verdict.gain == 1.9


@pytest.mark.parametrize(
    ("disk", "rule", "other"),
    [("solid state", "cold_disk", "network_disk"), ("network", "network_disk", "cold_disk")],
)
def test_a_store_that_fits_is_staged_into_memory(disk, rule, other):
    known = facts(**{**STORE, "disk": disk}, **WAITING, disk_rate=SLOW_DISK)
    assert verdict_of(rule, known).overrides == ("data.stage=ram",)
    assert verdict_of(rule, known).gain > 2
    assert verdict_of(other, known) is None


def test_many_readers_wait_together_and_then_share_the_cores():
    rates = {**WAITING, "compute": 10_000.0, "prepare_cores": 0.8, "wait": 1.0}
    storage = {**STORE, "form": "folder"}
    verdict = verdict_of("cold_disk", facts(**storage, **rates, disk_rate=FAR_DISK))
    record_s = 50e3 / 5e6 * 0.95 / 7 + 0.8 / 80 / 4
    assert verdict.gain == pytest.approx(1 / 80 / record_s, rel=0.05)


def test_a_disk_with_a_full_line_needs_a_copy():
    storage = {**STORE, "num_records": 10**8}
    verdict = verdict_of("cold_disk", facts(**storage, **WAITING, disk_rate=SLOW_DISK))
    assert "local disk" in verdict.action
    assert not verdict.can_try


@pytest.mark.parametrize(
    "changes",
    [{"read_cores": 0.9}, {"prepare": 5.0, "whole": 5.0}, {"disk": "memory"}, {"disk_rate": None}],
)
def test_reading_that_does_not_wait_is_no_cause(changes):
    known = {**STORE, "disk": "solid state", **WAITING, "disk_rate": SLOW_DISK}
    assert verdict_of("cold_disk", facts(**{**known, **changes})) is None


@pytest.mark.parametrize(
    ("own", "waited", "demand"),
    [(2.0, 0.0, 1.0), (1.0, 0.5, 1.5), (1.0, 1.0, 2.0), (0.5, 30.0, 4.0), (0.0, 0.0, 1.0)],
)
def test_the_demand_is_at_most_the_cores_of_the_mask(own, waited, demand):
    known = facts(own_cores=own, waited_cores=waited, allowed_cores=2)
    assert known.demand == pytest.approx(demand)


@pytest.mark.parametrize(
    ("own", "waited", "others", "gain"),
    # The threads of too many workers wait for each other, whatever other programs do.
    [(1.0, 1.0, 1.0, 2.0), (1.6, 6.0, 0.4, 1.25), (0.8, 0.0, 1.0, 1.0)],
)
def test_other_programs_give_back_at_most_what_they_take(own, waited, others, gain):
    use = {"own_cores": own, "waited_cores": waited, "others_cores": others}
    assert verdict_of("other_programs", facts(**use)).gain == pytest.approx(gain)


@pytest.mark.parametrize(
    ("fewer", "faster", "cores", "gain"),
    # One thread is 1.5 times as fast as two beside others, on three quarters of a core.
    [(1, 1.5, 0.75, 4.0), (1, 0.2, 0.9, 1.0), (2, 1.0, 1.0, 1.0)],
)
def test_threads_with_cores_of_their_own_share_the_work(fewer, faster, cores, gain):
    known = {"fewer_threads": fewer, "fewer_threads_gain": faster, "fewer_threads_cores": cores}
    use = {"own_cores": 4.0, "others_cores": 0.4}
    rates = {"compute": 100.0, "whole": 100.0}
    verdict = verdict_of("other_programs", facts(**use, **rates, num_threads=2, **known))
    assert verdict.gain == pytest.approx(gain)


def rules(**changes):
    return [verdict.rule for verdict in verdicts_of(rank_facts(**changes))]


def cause(**changes):
    facts = rank_facts(**changes)
    verdict = rank_cause(facts, verdicts_of(facts))
    return verdict and verdict.rule


def test_a_late_rank_is_the_cause_and_the_gain_is_what_the_others_lost():
    (verdict,) = verdicts_of(rank_facts(late=LATE))
    assert cause(late=LATE) == "slow_rank"
    assert verdict.gain == pytest.approx(1 / 0.6)
    assert verdict.says.startswith("Rank 1 is late in 98 % of the steps, in `forward`, by 20 ms")
    assert verdict.is_advice
    assert not verdict.can_try


def test_a_rank_with_more_work_is_not_slow_but_uneven():
    changes = {"late": LATE, "rank_work": 1.5, "step_work": 1.5, "waiting_share": 0.2}
    assert rules(**changes) == ["uneven_ranks"]
    assert cause(**changes) == "uneven_ranks"


def test_what_the_exchange_of_gradients_costs_is_measured():
    (verdict,) = verdicts_of(rank_facts(exchange_share=0.3, unsynced_s=0.05))
    assert verdict.rule == "slow_collectives"
    assert verdict.gain == pytest.approx(2.0)
    assert "50.0 ms instead of 100.0 ms" in verdict.says
    assert not verdict.overrides


def test_exchanges_that_are_not_of_gradients_are_those_of_batch_norm():
    changes = {"exchange_share": 0.3, "unsynced_s": 0.099}
    (verdict,) = verdicts_of(rank_facts(**changes, sync_batch_norm=True))
    assert verdict.overrides == ("parallel.sync_batch_norm=false",)
    (verdict,) = verdicts_of(rank_facts(**changes))
    assert not verdict.overrides


def test_a_small_loss_is_advice_but_no_cause():
    assert rules(exchange_share=0.05) == ["slow_collectives"]
    assert cause(exchange_share=0.05) is None


def test_waiting_for_data_on_all_ranks_comes_first():
    spans = {**SPANS, "wait": RankSpan(0.04, 0.045, 0.05, 0)}
    assert cause(late=LATE, spans=spans) is None
    assert rules(late=LATE, spans=spans) == ["slow_rank"]
