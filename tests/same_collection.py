"""Check that processes collect the same tests: ``python -m tests.same_collection``."""

import os
import subprocess
import sys
import time
from difflib import unified_diff
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAUSE_S = 2  # more than the second in which gzip counts time
COLLECT = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider"]


def main() -> int:
    """Collect twice with other hash seeds, and print how the lists differ. Return the exit code."""
    started: list[subprocess.Popen[str]] = []
    for seed in ("1", "2"):
        if started:
            time.sleep(PAUSE_S)
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        started.append(
            subprocess.Popen(COLLECT, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        )
    first, second = (
        [line for line in process.communicate()[0].splitlines() if "::" in line]
        for process in started
    )
    print(*unified_diff(first, second, lineterm="", n=0), sep="\n", end="")
    if any(process.returncode for process in started):
        print("pytest cannot collect the tests: run it to see why")
        return 1
    return int(first != second or not first)


if __name__ == "__main__":
    sys.exit(main())
