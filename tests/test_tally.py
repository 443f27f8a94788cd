import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from framework.contracts import Outcome
from framework.tally import detached, means


def outcome(values, counts=True):
    """What an objective finds in records with these losses, each of which is also counted."""
    loss = torch.tensor(values, dtype=torch.float64, requires_grad=True).mean()
    return detached(Outcome(loss, {"hits": torch.tensor(len(values))}, len(values)), counts)


def one_rank(sums):
    return sums


def test_uneven_batches_weigh_what_they_hold():
    found, count = means([outcome([1.0, 1.0, 1.0]), outcome([5.0])], one_rank)
    assert (found, count) == ({"loss": 2.0, "hits": 1.0}, 4.0)


@given(st.lists(st.lists(st.integers(-1000, 1000), min_size=1, max_size=5), min_size=1, max_size=5))
def test_the_mean_over_batches_is_the_mean_over_records(batches):
    found, count = means([outcome([float(value) for value in batch]) for batch in batches], one_rank)
    records = [value for batch in batches for value in batch]
    assert count == len(records)
    assert found["loss"] == pytest.approx(sum(records) / len(records), abs=1e-9)


def test_a_filler_is_as_nothing():
    found, count = means([outcome([1.0, 3.0]), outcome([1e30], counts=False)], one_rank)
    assert (found, count) == ({"loss": 2.0, "hits": 1.0}, 2.0)


def test_a_detached_outcome_holds_no_graph():
    assert not outcome([1.0]).loss.requires_grad
    assert not outcome([1.0], counts=False).loss.requires_grad


def test_sums_are_added_over_ranks_before_they_are_divided():
    def total(sums):
        return sums + torch.tensor([2.0, 30.0, 6.0], dtype=torch.float64)  # another rank's hits, losses and count

    asked = []
    found, count = means([outcome([1.0, 1.0])], lambda sums: asked.append(sums) or total(sums))
    assert asked[0].tolist() == [2.0, 2.0, 2.0]
    assert (found["loss"], found["hits"], count) == (4.0 / 8, 32.0 / 8, 8.0)


def test_what_is_asked_of_the_ranks_is_float64_on_the_host():
    asked = []
    means([outcome([1.0])], lambda sums: asked.append(sums) or sums)
    assert (asked[0].dtype, asked[0].device.type) == (torch.float64, "cpu")


def test_a_million_small_losses_keep_their_digits():
    outcomes = [Outcome(torch.tensor(0.1), {}, 1)] * 100_000
    found, _ = means(outcomes, one_rank)
    assert found["loss"] == pytest.approx(float(torch.tensor(0.1)), rel=1e-12)


def test_half_precision_counts_are_exact():
    outcomes = [Outcome(torch.tensor(1.0), {"total": torch.tensor(2000.0, dtype=torch.bfloat16)}, 1)] * 3
    assert means(outcomes, one_rank)[0]["total"] == 2000.0
