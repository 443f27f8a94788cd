"""The numbers of processes that can share a number of virtual ranks."""

from framework.errors import ConfigError


def check_virtual_ranks(virtual_ranks: int, num_processes: int) -> None:
    """Raise ConfigError C143 unless the processes can share the virtual ranks and keep the sums.

    The virtual ranks of one process must form a subtree of the pairwise sum: they are all of them,
    or a power of two.
    """
    divisors = [n for n in range(1, virtual_ranks + 1) if virtual_ranks % n == 0]
    fitting = [n for n in divisors if n == 1 or (virtual_ranks // n).bit_count() == 1]
    if num_processes not in fitting:
        where = f"parallel.virtual_ranks = {virtual_ranks}"
        what = f"cannot be dealt out to {num_processes} processes so that sums stay the same"
        fix = f"have {' or '.join(map(str, fitting))} processes in all"
        raise ConfigError(143, where, what, fix)
