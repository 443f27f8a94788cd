import math

import pytest

from framework.contracts.span import RankSpan
from framework.diagnosis import code_lines, step_rules
from framework.diagnosis.facts import PythonLine, RunFacts, times_per_step
from framework.diagnosis.judge import cause_of, limit_of, rank_cause, verdicts_of
from framework.measure import host, usage
from tests.diagnosis.cases import CUDA, FINE, LATE, SPANS, facts, rank_facts, verdict_of

SYNCS = (code_lines.Sync("/code/loss.py", 9, "item()", 3000, "total += x.item()"),)
SMALL_STEPS = {**FINE, "other": 600.0}


@pytest.mark.parametrize(
    ("rule", "changes", "speaks"),
    [
        *(("data_is_fine", {**FINE}, True), ("data_is_fine", {}, False)),
        *(("amp", {**FINE, **CUDA}, True), ("amp", {**FINE}, False)),
        ("amp", {**FINE, "bf16": True}, True),
        ("amp", {**FINE, **CUDA, "precision": "amp"}, False),
        ("amp", {**CUDA}, False),
        ("larger_batch", {**SMALL_STEPS}, True),
        ("larger_batch", {**FINE}, False),
        ("larger_batch", {**FINE, "other": None}, False),
        ("channels_last", {**FINE, "convolutional": True}, True),
        ("channels_last", {**FINE}, False),
        ("compile_model", {**SMALL_STEPS, **CUDA}, True),
        ("compile_model", {**SMALL_STEPS}, False),
        ("synchronizations", {**FINE, **CUDA, "syncs": SYNCS}, True),
        ("synchronizations", {**FINE, "syncs": SYNCS}, False),
        ("synchronizations", {**FINE, **CUDA}, False),
    ],
)
def test_a_rule_speaks_where_computing_limits(rule, changes, speaks):
    assert (verdict_of(rule, changes) is not None) == speaks


TINY = {"batch_size": 1}
MOSTLY_FIXED = {"compute": 100.0, "other": 700.0, "other_size": 8}


def test_tiny_batches_slow_loading_as_well():
    verdict = verdict_of("larger_batch", facts(**TINY, **MOSTLY_FIXED, whole=40.0))
    assert set(verdict.parts) >= {"wait", "copy", "forward"}
    assert verdict.overrides == ("batch_size=64",)
    larger = facts(**{**MOSTLY_FIXED, "other_size": 512}, whole=40.0)
    assert verdict_of("larger_batch", larger) is None


LINE = PythonLine("objective", "/code/loss.py", 7, "__call__", "total += x.item()", 0.6)
PARTS_OF = {
    "python_in_model": ("compute", "forward", "backward"),
    "python_in_objective": ("compute", "forward"),
    "python_in_augment": ("copy",),
    "python_in_transform": ("wait",),
}
SHARES = {"objective": 0.8, "model": 0.5, "augment": 0.3, "transform": 0.9}
STEP = {"python": SHARES, "lines": (LINE,)}
READY = {**FINE, "prepare": 30_000.0}  # batches are ready before they are wanted
OF_FUNCTION = {"has_function": True}


@pytest.mark.parametrize(
    ("rule", "changes", "share"),
    [
        ("python_in_objective", {**READY}, "79 %"),
        ("python_in_model", {**READY}, "50 %"),
        ("python_in_augment", {**READY}, "30 %"),
        ("python_in_augment", {}, None),  # a step waits for 75 % of its time
        ("python_in_transform", OF_FUNCTION, "90 %"),
        ("python_in_transform", {}, None),
        ("python_in_transform", {**OF_FUNCTION, **FINE}, None),
    ],
)
def test_a_rule_speaks_where_python_takes_much(rule, changes, share):
    verdict = verdict_of(rule, {**STEP, **changes})
    assert (verdict is None) == (share is None)
    if verdict is not None:
        assert share in verdict.says
        assert verdict.edit
        assert verdict.gain > 1
        assert verdict.parts == PARTS_OF[rule]


def test_the_line_is_named():
    verdict = verdict_of("python_in_objective", facts(**STEP, **READY))
    assert "loss.py:7 (__call__)" in verdict.says
    assert verdict.edit.endswith("loss.py:7 differently: total += x.item()")
    # of a step, 1 % waits
    assert verdict.gain == pytest.approx(1 / (0.99 * (1 - 0.8) + 0.01), rel=0.02)


@pytest.mark.parametrize(
    ("rates", "gain"),
    [
        # half of a step waits, because the threads that prepare wait for Python's lock
        ({"whole": 500.0, "wait": 0.5, "prepare": 30_000.0, "loader_rate": 30_000.0}, 8.6),
        # taking a batch that is ready costs a tenth of a step
        ({"whole": 900.0, "wait": 0.1, "prepare": 30_000.0}, 1 / (0.9 * 0.2 + 0.1)),
        # batches cost as much as half of what Python takes
        ({**FINE, "prepare": 1000.0, "prepare_two": 2000.0}, 2.0),
        # the loader alone makes 500 records a second, so half of the step is left
        ({"prepare": None}, 1 / (0.5 + 0.2 / 4)),
    ],
)
def test_without_python_a_step_waits_only_for_what_batches_cost(rates, gain):
    step = {"objective": 0.8}
    verdict = verdict_of("python_in_objective", facts(python=step, **rates))
    assert verdict.gain == pytest.approx(gain, rel=0.05)


# A step of 64 records takes 64 ms.
STEPS = {**FINE, "whole": 1000.0, "compute": 1000.0}
VALIDATES = {"validate_s": 1.0, "validate_every": 10.0}
SAVES = {"save_s": 0.32, "save_every": {"checkpoint.every_steps": 5.0}}
REPORTS = {"report_s": {"jsonl": 0.001, "mine": 0.063}, "report_every": 1}


def case(**run):
    return facts(**STEPS, run=RunFacts(**{"epoch_steps": 1000, **run}))


@pytest.mark.parametrize(
    ("rule", "run", "cost_s", "key"),
    [
        ("frequent_validation", VALIDATES, 1.0, "validate_every"),
        ("frequent_saving", SAVES, 0.32, "checkpoint.every_steps"),
        ("chatty_sinks", REPORTS, 0.064, "report_every"),
    ],
)
def test_the_advised_interval_leaves_less_than_three_percent(rule, run, cost_s, key):
    verdict = verdict_of(rule, case(**run))
    name, _, every = verdict.overrides[0].partition("=")
    assert name == key
    assert 0.025 < cost_s / int(every) / 0.064 <= 0.0301


def test_each_key_that_saves_too_often_is_changed():
    every = {"checkpoint.every_epochs": 100.0, "checkpoint.every_s": 50.0, "validate_every": 1e6}
    verdict = verdict_of("frequent_saving", case(save_s=2.0, save_every=every, epoch_steps=100))
    words = dict(word.split("=") for word in verdict.overrides)
    assert words.keys() == {"checkpoint.every_epochs", "checkpoint.every_s"}
    steps = 2.0 / 0.03 / 0.064
    assert int(words["checkpoint.every_epochs"]) == math.ceil(math.ceil(steps / 100) * 100 / 100)
    assert int(words["checkpoint.every_s"]) >= steps * 0.064


def test_reports_at_the_ends_of_short_epochs_stay():
    verdict = verdict_of("chatty_sinks", case(**REPORTS, epoch_steps=16))
    assert verdict.overrides == ("report_every=16",)
    assert verdict.gain == pytest.approx(128 / 68)
    already = verdict_of("chatty_sinks", case(**{**REPORTS, "report_every": 16}, epoch_steps=16))
    assert (already.overrides, already.action) == ((), "leave out sink=mine")


def test_a_run_that_mostly_validates_is_limited_by_it():
    known = case(**VALIDATES)
    verdicts = verdicts_of(known)
    cause = cause_of(known, verdicts, ())
    assert cause.rule == "frequent_validation"
    assert limit_of(known, cause).startswith("Validating limits training: validating takes 61 %")


@pytest.mark.parametrize(
    ("intervals", "per_step"),
    [((), 0.0), ((10,), 0.1), ((10, 20), 0.1), ((10, 15), 0.1 + 1 / 15 - 1 / 30)],
)
def test_saves_that_coincide_count_once(intervals, per_step):
    run = RunFacts(100, save_every={str(every): every for every in intervals})
    assert times_per_step(*run.save_every.values()) == pytest.approx(per_step, rel=0.01)


def test_shares_are_of_a_run_with_all_that_it_does():
    run = RunFacts(
        100,
        validate_s=1.0,
        validate_every=100,
        save_s=0.5,
        save_every={"checkpoint.every_steps": 50},
        report_s={"jsonl": 0.001, "mine": 0.009},
        report_every=1,  # the ends of epochs coincide with it
    )
    assert run.costs_s == pytest.approx({"validating": 0.01, "saving": 0.01, "reporting": 0.01})
    assert run.shares(0.01) == pytest.approx(dict.fromkeys(run.costs_s, 0.25))


MANY = {"num_threads": 16, "fewer_threads": 4, "fewer_threads_gain": 10.0}
BESIDE = {"others_cores": 2.0, "own_cores": 2.0, "waited_cores": 2.0}
SLOW_DISK = host.DiskRate(5e6, 6e6)
FAR_DISK = host.DiskRate(5e6, 35e6)
# Reading a record of 50 kB at 5 MB/s takes 10 ms.
WAITING = {"read": 100.0, "read_cores": 0.05, "prepare": 80.0, "prepare_cores": 0.2}
WAITING |= {"whole": 80.0, "wait": 0.9}
HDF5 = {"form": "hdf5", "cached": 0.1}


def test_a_quiet_machine_gives_no_cause():
    assert not [verdict for rule in step_rules.MACHINE_RULES for verdict in rule(facts())]


def test_threads_are_limited_to_the_cores_by_the_variable_and_the_workers_by_a_key():
    verdict = verdict_of("too_many_threads", facts(workers=16, **MANY))
    assert verdict.threads == 4
    assert verdict.overrides == ("workers.num=4",)
    assert "16 workers take the same cores" in verdict.says


BUSY = {**BESIDE, "programs": (usage.Program(17, "blender", 1.8),)}
STOPPED = {"own_cores": 1.0, "waited_cores": 1.5, "throttled_share": 0.9}
# A run has no more threads than its quota has cores, so none of them waits.
STOPPED_ALONE = {**STOPPED, "own_cores": 0.5, "waited_cores": 0.5, "quota_cores": 0.5}
ALONE_RATES = {"compute": 100.0, "compute_cores": 0.5, "whole": 80.0, "num_threads": 1}


@pytest.mark.parametrize(
    ("rule", "changes", "gain", "words"),
    [
        ("opencv_threads", {"opencv_threads": 8, "no_opencv_gain": 1.5}, 1.5, "setNumThreads(0)"),
        ("other_programs", BUSY, 2.0, "blender (17) 1.8"),
        ("cpu_quota", {**STOPPED, "quota_cores": 1.0, "num_threads": 4}, 2.5, "--cpus=4"),
        # The rest of a step gets both cores of which it waits for one.
        ("cpu_quota", {**STOPPED_ALONE, **ALONE_RATES}, 1 / (0.8 / 8 + 0.2 / 2), "--cpus=4"),
        ("few_cores", {"allowed_cores": 1, "all_cores_gain": 1.9}, 1.9, "--cpu-list 0-3"),
    ],
    ids=["opencv", "others", "quota", "quota without threads", "mask"],
)
def test_what_takes_cores_is_named_with_its_gain_and_advice(rule, changes, gain, words):
    verdict = verdict_of(rule, changes)
    assert verdict.gain == pytest.approx(gain)
    assert words in f"{verdict.says} {verdict.edit} {verdict.action}"


@pytest.mark.parametrize(
    ("disk", "rule", "other"),
    [("solid state", "cold_disk", "network_disk"), ("network", "network_disk", "cold_disk")],
)
def test_a_store_that_fits_is_staged_into_memory(disk, rule, other):
    known = facts(**{**HDF5, "disk": disk}, **WAITING, disk_rate=SLOW_DISK)
    assert verdict_of(rule, known).overrides == ("data.stage=ram",)
    assert verdict_of(rule, known).gain > 2
    assert verdict_of(other, known) is None


def test_many_readers_wait_together_and_then_share_the_cores():
    rates = {**WAITING, "compute": 10_000.0, "prepare_cores": 0.8, "wait": 1.0}
    storage = {**HDF5, "form": "folder"}
    verdict = verdict_of("cold_disk", facts(**storage, **rates, disk_rate=FAR_DISK))
    record_s = 50e3 / 5e6 * 0.95 / 7 + 0.8 / 80 / 4
    assert verdict.gain == pytest.approx(1 / 80 / record_s, rel=0.05)


def test_a_disk_with_a_full_line_needs_a_copy():
    storage = {**HDF5, "num_records": 10**8}
    verdict = verdict_of("cold_disk", facts(**storage, **WAITING, disk_rate=SLOW_DISK))
    assert "local disk" in verdict.action
    assert not verdict.can_try


@pytest.mark.parametrize(
    "changes",
    [{"read_cores": 0.9}, {"prepare": 5.0, "whole": 5.0}, {"disk": "memory"}, {"disk_rate": None}],
)
def test_reading_that_does_not_wait_is_no_cause(changes):
    known = {**HDF5, "disk": "solid state", **WAITING, "disk_rate": SLOW_DISK}
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


def rank_rules(**changes):
    return [verdict.rule for verdict in verdicts_of(rank_facts(**changes))]


def rank_cause_of(**changes):
    facts = rank_facts(**changes)
    verdict = rank_cause(facts, verdicts_of(facts))
    return verdict and verdict.rule


def test_a_late_rank_is_the_cause_and_the_gain_is_what_the_others_lost():
    (verdict,) = verdicts_of(rank_facts(late=LATE))
    assert rank_cause_of(late=LATE) == "slow_rank"
    assert verdict.gain == pytest.approx(1 / 0.6)
    assert verdict.says.startswith("Rank 1 is late in 98 % of the steps, in `forward`, by 20 ms")
    assert verdict.is_advice
    assert not verdict.can_try


def test_a_rank_with_more_work_is_not_slow_but_uneven():
    changes = {"late": LATE, "rank_work": 1.5, "step_work": 1.5, "waiting_share": 0.2}
    assert rank_rules(**changes) == ["uneven_ranks"]
    assert rank_cause_of(**changes) == "uneven_ranks"


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
    assert rank_rules(exchange_share=0.05) == ["slow_collectives"]
    assert rank_cause_of(exchange_share=0.05) is None


def test_waiting_for_data_on_all_ranks_comes_first():
    spans = {**SPANS, "wait": RankSpan(0.04, 0.045, 0.05, 0)}
    assert rank_cause_of(late=LATE, spans=spans) is None
    assert rank_rules(late=LATE, spans=spans) == ["slow_rank"]
