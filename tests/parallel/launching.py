"""Starts the rank program as real ranks and reads what they found."""

import json
from pathlib import Path

from framework.parallel.launch.start_ranks import launch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def launched(program, folder, count=2):
    """Run a program on ``count`` ranks, and return the dictionary of what each rank found."""
    ended = launch(count, "tests.parallel.rank_program", [program, str(folder)], ENVIRONMENT)
    assert ended == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]
