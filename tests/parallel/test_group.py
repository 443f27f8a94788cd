"""A group of one rank, in this process; those of two are tested with ddp and the contracts."""

import os
import subprocess
import sys

import pytest
import torch
import torch.distributed
from torch import nn
from torch.distributed.fsdp._fully_shard import _fsdp_collectives as collectives

from framework.contracts.span import EXCHANGE, OWN
from framework.errors import ConfigError
from framework.parallel import fsdp, hang, start_ranks
from framework.parallel.group import HostSyncBatchNorm, RankGroup, synchronized
from tests.fakes import CPU
from tests.parallel.launching import ROOT, launched, of_two_ranks
from tests.parallel.rank_program import KINDS, SPLITS, flat, gradients, learn, make_input, make_net

ALONE = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


@pytest.fixture
def alone(monkeypatch):
    for name, value in ALONE.items():
        monkeypatch.setenv(name, value)
    start_ranks.meet.cache_clear()
    group = RankGroup("ddp", 10.0, False, torch.device("cpu"))
    yield group
    group.close()
    start_ranks.meet.cache_clear()


def test_a_rank_alone_talks_to_itself(alone):
    assert (alone.rank, alone.world_size, alone.device.type) == (0, 1, "cpu")
    assert alone.total(torch.tensor([1.5], dtype=torch.float64)).tolist() == [1.5]
    assert [facts.tolist() for facts in alone.gather(torch.arange(3))] == [[0, 1, 2]]
    assert any(alone.agree(False, True)[1] for _ in range(40))


def test_a_closed_group_no_longer_marks_exceptions_with_its_rank(alone):
    assert sys.excepthook is not sys.__excepthook__
    alone.close()
    assert sys.excepthook is sys.__excepthook__


def test_gathering_and_reducing_are_marked_and_do_what_they_did(alone):
    marks = []
    alone.time_exchanges(marks.append)
    world, own = torch.distributed.group.WORLD, torch.arange(4.0)
    gathered, reduced = torch.zeros(4), torch.zeros(4)
    fsdp.inside(alone.exchange, collectives.DefaultAllGather)(gathered, own, group=world)
    assert marks == [OWN, EXCHANGE]
    operation = torch.distributed.ReduceOp.SUM
    reduce = fsdp.inside(alone.exchange, collectives.DefaultReduceScatter)
    reduce(output_tensor=reduced, input_tensor=own, group=world, op=operation)
    assert marks == [OWN, EXCHANGE] * 2
    assert gathered.tolist() == reduced.tolist() == own.tolist()


def test_more_ranks_than_gpus_are_refused(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "99")
    monkeypatch.setenv("LOCAL_RANK", "98")
    with pytest.raises(
        ConfigError, match=r"^error\[C145\]: parallel = ddp: rank 98 of this host finds \d+ GPU"
    ):
        RankGroup("ddp", 1.0, False, torch.device("cuda"))


MANY_ENDS = """
import sys
import torch
from framework.parallel import start_ranks
from framework.parallel.ddp import DistributedParallel

for _ in range(60):
    start_ranks.meet.cache_clear()
    group = DistributedParallel(1, False, 60.0, device=torch.device("cpu"))
    replica = group.wrap(torch.nn.Linear(2, 1))
    replica(torch.ones(1, 2)).sum().backward()
    # gloo's thread waits for the interpreter's lock, which it needs to release the tensor
    sys.setswitchinterval(0.1)
    shared = torch.ones(1)
    work = torch.distributed.all_reduce(shared, async_op=True)
    while not work.is_completed():
        pass
    del work, shared
    group.close()
    del replica
    sys.setswitchinterval(0.005)
print("ended", flush=True)
"""


@pytest.mark.slow
def test_a_replica_that_goes_after_its_group_does_not_wait_for_ever():
    """Without the group that is kept, one end in thirty hangs."""
    command, own = [sys.executable, "-c", MANY_ENDS], {"cwd": ROOT, "env": {**os.environ, **ALONE}}
    facts = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **own)
    assert "ended" in facts.stdout, facts.stderr


@pytest.mark.slow
def test_a_rank_that_hangs_while_another_saves_is_given_up_in_the_usual_time(tmp_path):
    first, _ = launched("hang_in_a_save", tmp_path)
    assert "timed out" in first["fault"]


@pytest.mark.slow
def test_a_save_may_take_longer_than_ranks_wait_for_each_other(tmp_path):
    assert launched("save_slowly", tmp_path) == [{"total": [2.0]}] * 2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return of_two_ranks("batch_norm", tmp_path_factory)


def whole_batch(kind):
    """Return the net and its outputs for all seven records: one process, torch's batch norm."""
    net = make_net(kind)
    return net, flat([learn(net, make_input(kind), 1.0)])


@pytest.mark.parametrize("first", SPLITS)
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_learn_what_one_learns_of_the_whole_batch(ranks, kind, first):
    net, outputs = whole_batch(kind)
    facts = [rank[f"{kind}-{first}"] for rank in ranks]
    bound = {"rel": 1e-4, "abs": 1e-6}
    assert facts[0]["outputs"] + facts[1]["outputs"] == pytest.approx(outputs, **bound)
    for rank in facts:
        assert rank["gradients"] == pytest.approx(gradients(net), **bound)
        assert rank["buffers"] == pytest.approx(flat(net.buffers()), **bound)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "untracked"])
def test_evaluation_uses_the_running_statistics(ranks, kind):
    net, _ = whole_batch(kind)
    expected = flat([net.eval()(make_input(kind))])
    assert ranks[0][f"{kind}-3"]["evaluated"] + ranks[1][f"{kind}-3"]["evaluated"] == pytest.approx(
        expected, rel=1e-4, abs=1e-6
    )


@pytest.mark.parametrize("first", SPLITS)
def test_a_model_in_double_precision_keeps_it(ranks, first):
    net, outputs = whole_batch("double")
    facts = [rank[f"double-{first}"] for rank in ranks]
    assert [rank.get("error") for rank in facts] == [None, None]
    assert facts[0]["outputs"] + facts[1]["outputs"] == pytest.approx(outputs, rel=1e-12)
    assert facts[0]["buffers"] == pytest.approx(flat(net.buffers()), rel=1e-12)


def test_every_batch_norm_at_any_depth_is_replaced_and_nothing_else():
    inner = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    net = nn.Sequential(inner, nn.BatchNorm2d(3), nn.GroupNorm(1, 3))
    net = synchronized(net, CPU, hang.Exchange())
    kinds = [type(module) for module in (*inner, net[1], net[2])]
    assert kinds == [nn.Linear, HostSyncBatchNorm, HostSyncBatchNorm, nn.GroupNorm]
