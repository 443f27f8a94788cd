"""Which numbers of processes can share virtual ranks."""

import pytest

from framework.errors import ConfigError
from framework.parallel.virtual_counts import check_virtual_ranks


@pytest.mark.parametrize(("virtual_ranks", "num_processes"), [(1, 1), (4, 2), (6, 3), (12, 3)])
def test_processes_that_add_up_in_the_same_order_pass(virtual_ranks, num_processes):
    check_virtual_ranks(virtual_ranks, num_processes)


@pytest.mark.parametrize(("virtual_ranks", "num_processes"), [(4, 3), (4, 8), (6, 2)])
def test_other_numbers_of_processes_are_refused(virtual_ranks, num_processes):
    with pytest.raises(ConfigError, match=f"cannot be dealt out to {num_processes} processes"):
        check_virtual_ranks(virtual_ranks, num_processes)
