"""One replica in this process."""

from framework.contracts.parallel import Parallel


class NoParallel(Parallel):
    """The model as it is, in one process that communicates with no other."""
