"""The numbers of processes that can share a number of virtual ranks."""

from framework.errors import ConfigError


def check_virtual_ranks(virtual_ranks: int, num_processes: int) -> None:
    """ConfigError C143 unless each process computes as many, and their sum is one that the sum of all is made of: those of 2**n neighbors."""
    numbers = [n for n in range(1, virtual_ranks + 1) if virtual_ranks % n == 0]
    fitting = [n for n in numbers if n == 1 or (virtual_ranks // n).bit_count() == 1]
    if num_processes not in fitting:
        what = f"cannot be dealt out to {num_processes} processes so that sums stay the same"
        fix = f"have {' or '.join(map(str, fitting))} processes in all"
        raise ConfigError(143, f"parallel.virtual_ranks = {virtual_ranks}", what, fix)
