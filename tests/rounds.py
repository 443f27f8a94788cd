"""Repeat the tests that start processes, because a race may show once in many runs.

python -m tests.rounds 20                    # find these tests in round 1, then repeat them
python -m tests.rounds 5 --tests FILE        # repeat the tests that an earlier call wrote to FILE
python -m tests.rounds 5 --workers 3         # as many tests at once (2)

It prints a line per round, keeps the output of failed rounds in ``outputs/rounds``, and ends with
exit code 1 if a round failed. It is a plugin of pytest, too, which finds or selects these tests.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import util
from pathlib import Path
from typing import Any

import pytest

from tests.cli.preloaded import Server

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "outputs" / "rounds"
RECORD, SELECT = "PACELINE_ROUNDS_RECORD", "PACELINE_ROUNDS_SELECT"  # a folder, a file
PASSED, FAILED = 0, 1  # pytest's exit codes if all tests ran
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}
PYTEST = [
    *(sys.executable, "-m", "pytest", "-p", "tests.rounds", "--dist", "loadfile"),
    *("-m", "not cluster and not slow"),
]


class Recorder:
    """A plugin that writes down the tests during which a process was started."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._started = False
        sys.addaudithook(self._hear)
        # these two start processes without an audit event in this process
        for owner, name in ((Server, "run"), (util, "spawnv_passfds")):
            setattr(owner, name, self._noted(getattr(owner, name)))

    def _hear(self, event: str, _arguments: tuple) -> None:
        if event in STARTS:
            self._started = True

    def _noted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._started = True
            return function(*arguments, **options)

        return call

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Run a test with its fixtures, and note its name if it started a process."""
        self._started = False
        result = yield
        if self._started:
            with self._path.open("a") as file:
                file.write(item.nodeid + "\n")
        return result


class Selector:
    """A plugin that keeps the tests with these names."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Deselect the other tests."""
        others = [item for item in items if item.nodeid not in self._names]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.nodeid in self._names]


def pytest_configure(config: pytest.Config) -> None:
    """Install the plugin that the environment asks for."""
    if folder := os.environ.get(RECORD):
        config.pluginmanager.register(Recorder(Path(folder) / f"{os.getpid()}.txt"))
    if file := os.environ.get(SELECT):
        config.pluginmanager.register(Selector(set(Path(file).read_text().splitlines())))


def run_round(number: int, workers: int, names: Path | None, **environment: str) -> bool:
    """Run the tests once, print the outcome, and return whether all passed.

    ``names`` is a file of tests; None: all of them.
    """
    files: list[str] = []
    if names is not None:
        environment[SELECT] = str(names)
        tests = names.read_text().splitlines()
        files = sorted({test.partition("::")[0] for test in tests})  # the others are not collected
    start = time.monotonic()
    done = subprocess.run(
        [*PYTEST, "-n", str(workers), *files],
        check=False,
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        (FOLDER / f"{number}.txt").write_text(done.stdout + done.stderr)
    outcome = done.stdout.strip().splitlines()[-1].strip("= ")
    print(f"round {number}: {outcome}, {time.monotonic() - start:.0f} s", flush=True)
    if done.returncode not in (PASSED, FAILED):
        sys.exit(f"round {number} did not run to its end")  # or it was interrupted
    return done.returncode == PASSED


def main() -> int:
    """Run the rounds. Return 0 if every test passed in all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", type=int)
    parser.add_argument("--tests", type=Path, help="names of tests, one per line")
    parser.add_argument("--workers", type=int, default=2, help="tests that run at once")
    given = parser.parse_args()
    workers: int = given.workers
    names, first, passed = given.tests, 1, True
    FOLDER.mkdir(parents=True, exist_ok=True)
    if names is None:
        names = FOLDER / "tests.txt"
        parts = FOLDER / "parts"
        parts.mkdir(exist_ok=True)
        for old in parts.iterdir():
            old.unlink()
        passed = run_round(1, workers, None, **{RECORD: str(parts)})
        names.write_text("".join(path.read_text() for path in sorted(parts.iterdir())))
        print(f"{len(names.read_text().splitlines())} tests start processes: {names}", flush=True)
        first = 2
    results = [run_round(number, workers, names) for number in range(first, given.rounds + 1)]
    return int(not (passed and all(results)))


if __name__ == "__main__":
    sys.exit(main())
