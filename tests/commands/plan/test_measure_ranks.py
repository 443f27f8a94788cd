"""Short runs here measure one rank, and as many as there are cores for."""

import os
from dataclasses import replace

import pytest
import torch

from framework.commands.plan import measure_ranks
from framework.commands.plan.measure_ranks import (
    ONE_REPLICA,
    check_parallel,
    most_ranks,
    planned_batch_size,
    short_runs,
)
from framework.commands.plan.planned_hosts import PlannedHosts
from framework.errors import ConfigError
from tests.commands.plan.made_runs import SINGLE

HOST = PlannedHosts(1, 1, cores=1, memory=10**9)


def test_the_batch_of_all_ranks_is_that_of_the_configuration():
    config = {"rank_batch_size": None, "batch_size": 64, "accumulate": 2}
    assert planned_batch_size(config, HOST) == 64
    of_rank = {**config, "rank_batch_size": 8}
    assert planned_batch_size(of_rank, replace(HOST, hosts=3)) == 8 * 2 * 3


def test_as_many_ranks_are_measured_as_there_are_cores_for(monkeypatch):
    monkeypatch.setattr(measure_ranks, "num_cores", lambda: 4)
    assert most_ranks(HOST) == 1
    assert most_ranks(replace(HOST, ranks_per_host=2, cores=4)) == 2
    assert most_ranks(replace(HOST, ranks_per_host=8, cores=8)) == 4


@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (replace(HOST, cores=16), "16 cores, and this machine has 4"),
        (replace(HOST, ranks_per_host=2, cores=8), "this machine has cores for one"),
        (replace(HOST, gpu="H100"), "this machine has no GPU"),
    ],
)
def test_what_cannot_be_measured_here_is_refused_at_once(hosts, words, monkeypatch):
    monkeypatch.setattr(measure_ranks, "num_cores", lambda: 4)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ConfigError, match=words):
        most_ranks(hosts)


@pytest.fixture
def trained(monkeypatch):
    """Return a list of the words of the short runs, which do not train."""
    words: list[list[str]] = []
    monkeypatch.setattr(measure_ranks, "num_cores", lambda: 4)
    monkeypatch.setattr(measure_ranks, "_train", lambda own, cores: words.append(own))
    monkeypatch.setattr(measure_ranks, "measured_run", lambda path, cores: SINGLE)
    return words


def measured_words(parallel, words, trained, tmp_path):
    """Return the words about ranks of the short runs.

    The runs measure ``parallel`` on two ranks of one host.
    """
    config = {"rank_batch_size": None, "batch_size": 64, "epochs": 1, "max_steps": None}
    config |= {"checkpoint": {"keep": 3}, "validate_every": None, "parallel": parallel}
    short_runs(words, None, config, replace(HOST, ranks_per_host=2, cores=2), 2, str(tmp_path))
    return [[word for word in own if word.startswith("parallel")] for own in trained]


def test_ranks_are_measured_as_they_are_planned(trained, tmp_path):
    planned = {"_target_": "mine.Sharded", "num_processes": 8, "num_nodes": 2, "timeout_s": 9}
    words = ["parallel=fsdp", "parallel.timeout_s=9", "parallel.num_processes=8"]
    kept = ["parallel=fsdp", "parallel.timeout_s=9"]
    one_rank, two_ranks = measured_words(planned, words, trained, tmp_path)
    assert one_rank == [*kept, "parallel.num_processes=1", "parallel.num_nodes=1"]
    assert two_ranks == [*kept, "parallel.num_processes=2", "parallel.num_nodes=1"]


def test_ranks_exchange_as_ddp_does_unless_something_is_chosen(trained, tmp_path):
    one_rank, two_ranks = measured_words(ONE_REPLICA, [], trained, tmp_path)
    assert (one_rank, two_ranks) == ([], ["parallel=ddp", "parallel.num_processes=2"])


def test_ranks_need_a_way_to_share_a_step():
    config = {"parallel": {"_target_": "framework.parallel.dp.DataParallel"}}
    check_parallel(config, HOST)
    check_parallel({"parallel": ONE_REPLICA}, replace(HOST, hosts=2))
    with pytest.raises(ConfigError, match=r"C398.*trains in one process, and 2 ranks"):
        check_parallel(config, replace(HOST, hosts=2))


def test_a_run_that_fails_says_why(tmp_path):
    config = {"rank_batch_size": None, "batch_size": 64, "parallel": ONE_REPLICA}
    words = ["data.train=nowhere.h5", "prepare=null"]
    with pytest.raises(ConfigError, match=r"C398.*D101"):
        short_runs(words, None, config, HOST, 2, str(tmp_path))


@pytest.mark.slow
def test_one_and_two_ranks_are_measured(tmp_path):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    config = {"rank_batch_size": None, "batch_size": 128, "epochs": 7, "max_steps": None}
    config |= {"checkpoint": {"keep": 3}, "validate_every": None, "parallel": ONE_REPLICA}
    hosts = replace(HOST, ranks_per_host=2, cores=2)
    single, double = short_runs(["batch_size=128"], None, config, hosts, 4, str(tmp_path))
    assert (single.ranks, double.ranks) == (1, 2)
    assert single.rank_batch == double.rank_batch == 64
    assert single.cores_per_rank == double.cores_per_rank == 1
    assert (double.epochs, double.keep) == (7, 3)
