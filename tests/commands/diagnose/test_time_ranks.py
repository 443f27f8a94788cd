"""Measuring ranks, without ranks; ``test_diagnose_ranks`` does it with real ones."""

import pytest
import torch

from framework.commands.diagnose.measure_run import Through
from framework.commands.diagnose.time_ranks import noted_sizes, work_of
from tests.fakes import FakeLoader, make_data


@pytest.mark.parametrize(
    ("sizes", "work"),
    [
        ([[1.0, 3.0], [3.0, 1.0]], (1.5, 1.0)),
        ([[3.0, 3.0], [1.0, 1.0]], (1.5, 1.5)),
        ([[3.0, 3.0, 9.0], [3.0, 3.0]], (1.0, 1.0)),
        ([[], [1.0]], (1.0, 1.0)),
    ],
)
def test_the_work_of_ranks_is_compared_step_by_step_and_over_all(sizes, work):
    assert work_of([torch.tensor([0.0, *own]) for own in sizes]) == work


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_size_of_a_step_is_that_of_all_its_passes(accumulate):
    """A record has four numbers and a label."""
    sizes = []
    loader = FakeLoader(make_data(8), 4, accumulate=accumulate)
    list(Through(loader, lambda batches: noted_sizes(batches, sizes)).epoch(0))
    assert sizes == [4 * 5.0] * 2
