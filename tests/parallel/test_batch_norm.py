import pytest
from torch import nn

from framework.parallel.batch_norm import HostSyncBatchNorm, synchronized
from framework.parallel.hang import Exchange
from tests.fakes import CPU
from tests.parallel.launching import of_two_ranks
from tests.parallel.rank_program import KINDS, SPLITS, flat, gradients, learn, make_input, make_net


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
    model = synchronized(
        nn.Sequential(inner, nn.BatchNorm2d(3), nn.GroupNorm(1, 3)), CPU, Exchange()
    )
    kinds = [type(module) for module in (*inner, model[1], model[2])]
    assert kinds == [nn.Linear, HostSyncBatchNorm, HostSyncBatchNorm, nn.GroupNorm]
