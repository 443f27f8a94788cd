"""The promises of ``contracts.Parallel``, kept by every implementation; ddp's in real processes."""

import pytest
import torch

from framework.parallel import dp, none
from tests.contract.parallel_facts import PASSES, facts_of, own_gradient
from tests.parallel.launching import of_two_ranks

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["none", "dp", "ddp"])
def ranks(request, tmp_path_factory):
    """Return what each rank found."""
    if request.param == "ddp":
        return of_two_ranks("contract", tmp_path_factory)
    return [facts_of({"none": none.NoParallel, "dp": dp.DataParallel}[request.param](device=CPU))]


def of_each(ranks, name):
    return [result[name] for result in ranks]


def test_ranks_are_numbered_from_0_and_know_their_number_device_and_notes(ranks):
    assert of_each(ranks, "rank") == list(range(len(ranks)))
    assert set(of_each(ranks, "world_size")) == {len(ranks)}
    assert set(of_each(ranks, "device")) == {"cpu"}
    assert all(isinstance(n, str) and n for notes in of_each(ranks, "notes") for n in notes)


def test_the_user_s_model_is_inside_and_computes_the_same(ranks):
    assert all(of_each(ranks, "is_inside"))
    assert all(of_each(ranks, "same_output"))
    assert of_each(ranks, "names") == [["weight"]] * len(ranks)


def test_replicas_start_and_end_the_same(ranks):
    assert all(start == ranks[0]["start"] for start in of_each(ranks, "start"))
    assert all(end == ranks[0]["end"] for end in of_each(ranks, "end"))
    assert ranks[0]["start"] != ranks[0]["end"]


def test_gradients_are_a_rank_s_own_until_the_last_pass_makes_them_the_mean(ranks):
    passes = [[own_gradient(rank, n) for n in range(PASSES)] for rank in range(len(ranks))]
    for own, gradients in zip(passes, of_each(ranks, "gradients"), strict=True):
        assert gradients[:-1] == torch.tensor(own).cumsum(0)[:-1].tolist()
        assert gradients[-1] == torch.tensor(passes).sum(1).mean(0).tolist()


def test_totals_are_sums_over_all_ranks_in_float64_on_the_host(ranks):
    expected = [float(sum(range(1, len(ranks) + 1))), len(ranks) * (2.0**53 - 1)]
    assert of_each(ranks, "total") == [expected] * len(ranks)
    assert of_each(ranks, "total_of_none") == [[]] * len(ranks)
    assert of_each(ranks, "total_kind") == [["torch.float64", "cpu"]] * len(ranks)


def test_every_rank_gathers_all_values_of_any_length(ranks):
    expected = [[float(rank)] * (rank + 1) for rank in range(len(ranks))]
    assert of_each(ranks, "gathered") == [expected] * len(ranks)


def test_no_rank_passes_a_wait_before_the_last_one_has_arrived(ranks):
    arrived, passed = zip(*of_each(ranks, "waited"), strict=True)
    assert min(passed) >= max(arrived)


def test_all_ranks_agree_at_the_same_call_once_any_said_true(ranks):
    assert all(agreed == ranks[0]["agreed"] for agreed in of_each(ranks, "agreed"))
    assert [True, False] in ranks[0]["agreed"]
    assert ranks[0]["agreed"][:3] == [[False, False]] * 3
