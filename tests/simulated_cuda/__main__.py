"""Print how many of 300 schedules go wrong without each guard.

Run ``python -m tests.simulated_cuda [COUNT]``.
"""

import os
import sys
import tempfile

import torch

from tests.conftest import make_records, write_store
from tests.simulated_cuda.mutants import MUTANTS, failing


def main() -> None:
    torch.set_num_threads(1)
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        path = write_store("records.h5", make_records(22))
        print(f"| guard | wrong with it | wrong without it, of {count} schedules |")
        print("| --- | --- | --- |")
        for mutant in MUTANTS:
            right = len(list(failing(mutant.work, path, range(count))))
            wrong = len(list(failing(mutant.work, path, range(count), mutant.broken)))
            print(f"| {mutant.guard} | {right} | {wrong} |", flush=True)


if __name__ == "__main__":
    main()
