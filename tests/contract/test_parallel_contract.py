"""The promises of ``contracts.Parallel``, kept by every implementation; ddp's in real processes."""

import pytest
import torch

from framework.parallel.dp import DataParallel
from framework.parallel.none import NoParallel
from tests.contract.parallel_facts import PASSES, facts_of, own_gradient
from tests.parallel.launching import launched

CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["none", "dp", "ddp"])
def ranks(request, tmp_path_factory):
    """Return what each rank found."""
    if request.param == "ddp":
        return launched("contract", tmp_path_factory.mktemp("contract"))
    return [facts_of({"none": NoParallel, "dp": DataParallel}[request.param](device=CPU))]


def test_ranks_are_numbered_from_0_and_know_how_many_they_are(ranks):
    assert [result["rank"] for result in ranks] == list(range(len(ranks)))
    assert {result["world_size"] for result in ranks} == {len(ranks)}


def test_the_device_is_the_one_that_was_asked_for(ranks):
    assert {result["device"] for result in ranks} == {"cpu"}


def test_notes_are_sentences(ranks):
    assert all(isinstance(note, str) and note for result in ranks for note in result["notes"])


def test_the_user_s_model_is_inside_under_its_plain_names(ranks):
    assert all(result["is_inside"] for result in ranks)
    assert all(result["names"] == ["weight"] for result in ranks)


def test_replicas_start_and_end_the_same(ranks):
    assert all(result["start"] == ranks[0]["start"] for result in ranks)
    assert all(result["end"] == ranks[0]["end"] for result in ranks)
    assert ranks[0]["start"] != ranks[0]["end"]


def test_a_replica_computes_what_the_model_computes(ranks):
    assert all(result["same_output"] for result in ranks)


def test_before_the_last_pass_a_rank_has_the_sum_of_its_own_gradients(ranks):
    for result in ranks:
        own = torch.tensor([own_gradient(result["rank"], number) for number in range(PASSES)])
        assert result["gradients"][:-1] == own.cumsum(0)[:-1].tolist()


def test_after_the_last_pass_every_rank_has_the_mean_over_ranks(ranks):
    sums = [[own_gradient(rank, number) for number in range(PASSES)] for rank in range(len(ranks))]
    expected = torch.tensor(sums).sum(1).mean(0).tolist()
    assert [result["gradients"][-1] for result in ranks] == [expected] * len(ranks)


def test_totals_are_element_wise_sums_over_all_ranks(ranks):
    expected = [float(sum(range(1, len(ranks) + 1))), len(ranks) * (2.0**53 - 1)]
    assert [result["total"] for result in ranks] == [expected] * len(ranks)
    assert [result["total_of_none"] for result in ranks] == [[]] * len(ranks)


def test_totals_are_host_float64(ranks):
    assert [result["total_kind"] for result in ranks] == [["torch.float64", "cpu"]] * len(ranks)


def test_no_rank_passes_a_wait_before_the_last_one_is_there(ranks):
    arrived = [result["waited"][0] for result in ranks]
    passed = [result["waited"][1] for result in ranks]
    assert min(passed) >= max(arrived)


def test_all_ranks_agree_at_the_same_call_once_any_said_true(ranks):
    assert all(result["agreed"] == ranks[0]["agreed"] for result in ranks)
    assert [True, False] in ranks[0]["agreed"]
    assert ranks[0]["agreed"][:3] == [[False, False]] * 3


def test_what_is_gathered_is_every_rank_s_own_of_any_length(ranks):
    expected = [[float(rank)] * (rank + 1) for rank in range(len(ranks))]
    assert [result["gathered"] for result in ranks] == [expected] * len(ranks)
