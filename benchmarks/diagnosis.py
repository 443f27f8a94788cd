"""Check that 'paceline diagnose' names what was planted, and that its predictions hold.

    python benchmarks/diagnosis.py [--only NAME ...] [--runs 2] [--seconds 40] [--folder DIR]
    python benchmarks/diagnosis.py --list

Each set-up of benchmarks/planted/ is diagnosed by the real command in a process of its own, which
also runs its best advice beside the present settings, in turn. If advice changes code, the mended
set-up is measured beside the slow one, in processes of their own. Prints a row per diagnosis and a
confusion matrix, and writes every diagnosis as JSON beside the data.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from planted.contract import Planted
from planted.every import every_planted

from framework.measure.statistics import Pairs

HERE = str(Path(__file__).parent)
PAIRS = 5
RATE_SECONDS = 3.0
LONGEST_S = 600.0
NOTHING = Pairs((math.nan,), (math.nan,))
FINE = "data_is_fine"
CLOSE = 0.2  # a prediction may be off by this share


class Result(NamedTuple):
    planted: Planted
    cause: str  # that was named
    limit: str
    predicted: float
    measured: Pairs
    seconds: float  # that the diagnosis took

    @property
    def is_right(self) -> bool:
        return self.cause == self.planted.cause

    @property
    def error(self) -> float:
        """Return the error of the prediction, as a share of what was measured."""
        return self.predicted / self.measured.gain - 1


def diagnosed(planted: Planted, folder: Path, seconds: float) -> Result:
    """Diagnose a set-up by the command that a user types."""
    words = planted.words(folder)
    output = folder / f"{planted.name}.json"
    own = ["apply=true", f"seconds={seconds:g}", f"output={output}"]
    command = [sys.executable, "-m", "framework", "diagnose", *words, *own]
    with planted.around(folder) as prefix:
        run([*prefix, *command], planted.environment, folder)
    diagnosis = json.loads(output.read_text())
    cause = diagnosis["cause"] or "none"
    result = Result(planted, cause, diagnosis["limit"], math.nan, NOTHING, diagnosis["seconds"])
    applied = diagnosis["applied"]
    if cause == FINE:
        measured = rates_in_turn(planted, folder, ("train", words), ("compute", words))
        return result._replace(predicted=diagnosis["facts"]["headroom"], measured=measured)
    if planted.remedy is not None and result.is_right:
        mended = planted.remedy.words(folder)
        measured = rates_in_turn(planted, folder, ("train", words), ("train", mended))
        return result._replace(predicted=gain_of(cause, diagnosis), measured=measured)
    if applied is not None:
        comparison = applied["comparison"]
        measured = Pairs(tuple(comparison["before"]), tuple(comparison["after"]))
        return result._replace(predicted=applied["verdict"]["gain"], measured=measured)
    return result


def gain_of(cause: str, diagnosis: dict[str, Any]) -> float:
    """Return the gain that the diagnosis predicts of the advice against ``cause``."""
    verdicts = [*diagnosis["verdicts"], *diagnosis["rejected"]]
    return next(verdict["gain"] for verdict in verdicts if verdict["rule"] == cause)


def rates_in_turn(
    planted: Planted, folder: Path, before: tuple[str, list[str]], after: tuple[str, list[str]]
) -> Pairs:
    """Measure the slow and the mended set-up in turn, each time in a process of its own."""
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(PAIRS):
        for side in (number % 2, 1 - number % 2):
            part, words = (before, after)[side]
            is_mended = side == 1 and planted.remedy is not None
            rates[side].append(rate_of(planted, folder, part, words, is_mended))
    return Pairs(tuple(rates[0]), tuple(rates[1]))


def rate_of(planted: Planted, folder: Path, part: str, words: list[str], mended: bool) -> float:
    """Return the records per second of a set-up."""
    environment = dict(planted.environment)
    around = planted.around(folder)
    if mended and planted.remedy is not None:
        environment |= planted.remedy.environment
        if planted.remedy.around is not None:
            around = planted.remedy.around(folder)
    own = [f"{RATE_SECONDS:g}", part, *words]
    with around as prefix:
        command = [*prefix, sys.executable, "-m", "planted.train_rate", *own]
        return float(run(command, environment, folder, capture=True).split()[-1])


def run(
    command: Sequence[str], environment: Mapping[str, str], folder: Path, capture: bool = False
) -> str:
    """Run a command that finds the planted modules. Return its output if it is captured."""
    path = os.pathsep.join([HERE, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, **environment},
        check=True,
        timeout=LONGEST_S,
        text=True,
        stdout=subprocess.PIPE if capture else None,
    )
    return done.stdout or ""


def table(results: Sequence[Result]) -> str:
    """Return a row per diagnosis, and how many of them are right."""
    lines = [
        "| planted | cause named | right | predicted | measured | prediction off by | took |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *map(row, results),
    ]
    num_right = sum(result.is_right for result in results)
    num_close = sum(abs(result.error) <= CLOSE for result in results)
    lines.append(
        f"\nright cause: {num_right} of {len(results)}; "
        f"predicted within {100 * CLOSE:.0f} %: {num_close} of {len(results)}"
    )
    return "\n".join(lines)


def row(result: Result) -> str:
    measured = f"{result.measured.gain:.2f} ± {result.measured.spread:.2f}"
    right = "yes" if result.is_right else f"NO, {result.planted.cause}"
    return (
        f"| {result.planted.about} | {result.cause} | {right} | {result.predicted:.2f} "
        f"| {measured} | {100 * result.error:+.0f} % | {result.seconds:.0f} s |"
    )


def confusion(results: Sequence[Result]) -> str:
    """Return how often each planted cause (row) was named as which cause (column)."""
    planted = list(dict.fromkeys(result.planted.cause for result in results))
    others = {result.cause for result in results} - set(planted)
    named = [*planted, *sorted(others)]
    counts = Counter((result.planted.cause, result.cause) for result in results)
    lines = [
        f"| planted \\ named | {' | '.join(named)} |",
        f"| --- |{' --- |' * len(named)}",
    ]
    for row in planted:
        cells = [str(counts[row, column] or ".") for column in named]
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", help="names of set-ups")
    parser.add_argument("--runs", type=int, default=1, help="diagnoses of each set-up")
    parser.add_argument("--seconds", type=float, default=40.0, help="as in paceline diagnose")
    parser.add_argument("--list", action="store_true", help="print the names of the set-ups")
    parser.add_argument("--folder", type=Path, help="keeps data and diagnoses")
    asked = parser.parse_args()
    every = every_planted()
    unknown = set(asked.only or ()) - {planted.name for planted in every}
    if unknown:
        parser.error(f"no such set-up: {', '.join(sorted(unknown))}; see --list")
    if asked.list:
        for planted in every:
            print(f"{planted.name:20} {planted.cause:20} {planted.about} {planted.obstacle()}")
        return
    wanted = [planted for planted in every if not asked.only or planted.name in asked.only]
    with tempfile.TemporaryDirectory(prefix="paceline-diagnosis-") as temporary:
        folder = (asked.folder or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        results = all_results(wanted, asked.runs, folder, asked.seconds)
    print("\n" + table(results))
    print("\n" + confusion(results))


def all_results(
    wanted: Sequence[Planted], num_runs: int, folder: Path, seconds: float
) -> list[Result]:
    """Diagnose every set-up that can run here, ``num_runs`` times."""
    results: list[Result] = []
    for planted in wanted:
        obstacle = planted.obstacle()
        if obstacle:
            print(f"\n===== {planted.name}: left out: {obstacle}", flush=True)
            continue
        for _ in range(num_runs):
            print(f"\n===== {planted.name}: {planted.about}", flush=True)
            try:
                results.append(diagnosed(planted, folder, seconds))
            except (OSError, subprocess.SubprocessError) as error:
                print(f"failed: {error}", flush=True)
                results.append(Result(planted, "failed", "", math.nan, NOTHING, math.nan))
            print(row(results[-1]), flush=True)
    return results


if __name__ == "__main__":
    main()
