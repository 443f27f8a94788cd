"""A rank that trains: ``python -m framework.cli.start_rank FILE``."""

import sys

from framework.cli.signals import begin_rank
from framework.system.imports import load

if __name__ == "__main__":  # signals get their meaning before anything large is imported
    begin_rank(sys.argv[1])
    load("framework.cli.run_ranks").train_rank(sys.argv[1])
