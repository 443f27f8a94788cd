"""The forecast follows from what was measured, and refuses what was not."""

from dataclasses import replace

import pytest

from framework.commands.plan.forecast import forecast
from framework.commands.plan.planned_hosts import PlannedHosts
from framework.errors import ConfigError
from tests.commands.plan.made_runs import DOUBLE, SINGLE

ONE = PlannedHosts(1, 1, cores=2, memory=10**9)
FOUR = replace(DOUBLE, ranks=4, step_s=0.15)
TWO = replace(ONE, ranks_per_host=2, cores=4, memory=2 * 10**9)


def test_one_rank_takes_what_was_measured():
    plan = forecast(ONE, [SINGLE], 50)
    assert (plan.steps, plan.step_s, plan.first_step_s) == (20, 0.1, 0.1)
    assert plan.train_s == pytest.approx(20.0)
    assert plan.validate_s == 10.0
    assert (plan.memory_bytes, plan.fits) == (5e8, True)
    assert plan.disk_bytes == 100_000_000 + 2 * 2_000_000 + 2 * 1_000_000
    assert plan.read_bytes_per_s == pytest.approx(5_000_000 / 0.1)
    assert plan.limit == "computing"


def test_two_ranks_add_what_they_cost_each_other():
    plan = forecast(TWO, [SINGLE, DOUBLE], 100)
    assert plan.step_s == pytest.approx(0.12)
    assert plan.exchange_s == pytest.approx(0.02)
    assert plan.memory_bytes == 1e9


def test_ranks_of_which_none_was_measured_alone_take_what_they_took():
    plan = forecast(TWO, [DOUBLE], 100)
    assert (plan.step_s, plan.exchange_s) == (0.12, None)


def test_four_ranks_exchange_more():
    hosts = replace(TWO, ranks_per_host=4, cores=8)
    plan = forecast(hosts, [SINGLE, DOUBLE], 200)
    assert plan.exchange_s == pytest.approx(0.02 * 2 * 1.5)
    assert not plan.fits or plan.memory_bytes <= hosts.memory


def test_a_network_carries_the_gradients():
    hosts = replace(ONE, hosts=2, network=2e6)
    plan = forecast(hosts, [SINGLE], 100)
    assert plan.network_bytes == 1_000_000
    assert plan.step_s == pytest.approx(0.1 + 0.5)
    assert plan.limit == "network"


@pytest.mark.parametrize(("ahead", "step_s"), [(True, 0.5), (False, 0.6)])
def test_a_slow_disk_sets_the_pace_of_the_first_epoch(ahead, step_s):
    hosts = replace(ONE, disk=1e7)
    plan = forecast(hosts, [replace(SINGLE, reads_ahead=ahead)], 50)
    assert plan.first_step_s == pytest.approx(step_s)
    assert plan.step_s == pytest.approx(0.1)
    assert plan.limit == "disk"


def test_what_does_not_fit_into_memory_is_read_again():
    hosts = replace(ONE, disk=1e7, memory=int(5.5e8))
    plan = forecast(hosts, [SINGLE], 50)
    assert plan.cached_share == pytest.approx(0.5)
    assert plan.step_s == pytest.approx(0.25)


@pytest.mark.parametrize(("last", "steps"), [("short", 3), ("wrap", 3), ("drop", 2)])
def test_an_epoch_has_the_records_in_use(last, steps):
    plan = forecast(ONE, [replace(SINGLE, epoch_records=120, last=last)], 50)
    assert plan.steps == steps
    assert plan.read_bytes_per_s == pytest.approx(5_000_000 / 0.1)  # records are as large as ever


def test_only_records_in_use_stay_in_memory():
    few = replace(SINGLE, epoch_records=100)
    assert forecast(replace(ONE, memory=int(5.1e8)), [few], 50).cached_share == 1.0


def test_an_epoch_without_a_whole_batch_is_refused():
    few = replace(SINGLE, epoch_records=30, last="drop")
    with pytest.raises(ConfigError, match=r"C398.*leaves nothing of 30 records"):
        forecast(ONE, [few], 50)


def test_a_bound_on_the_steps_counts():
    plan = forecast(ONE, [replace(SINGLE, max_steps=10)], 50)
    assert plan.epochs == 0.5
    assert plan.train_s == pytest.approx(1.0)


@pytest.mark.parametrize(("every", "count"), [(None, 10), (7, 29), (20, 10), (1000, 1)])
def test_validations_are_counted(every, count):
    plan = forecast(ONE, [replace(SINGLE, validate_every=every)], 50)
    assert (plan.validations, plan.validate_s) == (count, count)


def test_too_little_memory_is_said():
    assert not forecast(replace(ONE, memory=10**8), [SINGLE], 50).fits


@pytest.mark.parametrize(
    ("hosts", "runs", "batch_size", "words"),
    [
        (replace(ONE, hosts=2), [SINGLE], 100, "the network between them was not measured"),
        (replace(ONE, cores=8), [SINGLE], 50, "would have 8 cores, but 2 were measured"),
        (replace(ONE, gpu="H100"), [SINGLE], 50, "computing was measured on cores"),
        (ONE, [replace(SINGLE, gpu="NVIDIA H100")], 50, "measured on NVIDIA H100"),
        (TWO, [SINGLE], 100, "what ranks of one host cost each other was not measured"),
        (ONE, [SINGLE], 64, "computes 64 records in a step, but 50 were measured"),
        (replace(TWO, ranks_per_host=3, cores=6), [SINGLE, DOUBLE], 100, "cannot share it"),
        (replace(TWO, ranks_per_host=16, cores=32), [SINGLE, DOUBLE], 800, "is a guess"),
        (replace(ONE, disk=1e8), [replace(SINGLE, store_bytes=None)], 50, "is no file"),
        (replace(TWO, ranks_per_host=4, cores=8), [DOUBLE], 200, "no rank alone"),
        (replace(TWO, ranks_per_host=8, cores=16), [DOUBLE, FOUR], 400, "no rank alone"),
        (replace(ONE, hosts=2, network=1e9), [DOUBLE], 100, "no rank alone"),
        (TWO, [replace(SINGLE, cores_per_rank=4), DOUBLE], 100, "but 4 were measured"),
        (TWO, [replace(SINGLE, rank_batch=25), DOUBLE], 100, "but 25 were measured"),
    ],
)
def test_what_was_not_measured_is_refused(hosts, runs, batch_size, words):
    with pytest.raises(ConfigError, match=words) as caught:
        forecast(hosts, runs, batch_size)
    assert "C398" in str(caught.value)
