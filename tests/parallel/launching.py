"""Starts the rank program as real ranks and reads what they found."""

import json
from fcntl import LOCK_EX, flock
from pathlib import Path

from framework.parallel.start_ranks import launch

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def launched(program, folder, count=2):
    """Run a program on ``count`` ranks, and return the dictionary of what each rank found."""
    ended = launch(count, "tests.parallel.rank_program", [program, str(folder)], ENVIRONMENT)
    assert ended == 0
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(count)]


def of_two_ranks(program, tmp_path_factory):
    """Return what each of two ranks found; they run ``ALL`` programs once for all tests."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if folder.name.startswith("popen-") else folder) / "two_ranks"
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as file:
        flock(file, LOCK_EX)
        paths = [folder / f"{rank}.json" for rank in range(2)]
        if all(path.exists() for path in paths):
            ranks = [json.loads(path.read_text()) for path in paths]
        else:
            ranks = launched("all", folder)
    return [facts[program] for facts in ranks]
