"""Evaluate in ranks: ``python -m framework.commands.evaluate.evaluate_rank FILE`` runs one rank."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from framework.cli.start_rank import begin_rank

if TYPE_CHECKING:
    from framework.cli.outcome import RunOutcome
    from framework.cli.run_ranks import RankedJob


def main(path: str) -> None:
    """Run the rank that ``FILE`` describes."""
    begin_rank(path)
    from framework.cli.run_ranks import run_rank  # noqa: PLC0415  # loads torch

    run_rank(path, evaluate_here)


def evaluate_here(job: "RankedJob") -> "RunOutcome":
    """Evaluate in this process, which may be one of several ranks. Rank 0 writes the results."""
    from framework.cli.outcome import RunOutcome  # noqa: PLC0415
    from framework.commands.evaluate.evaluation import EvaluationJob, write_evaluation  # noqa: PLC0415

    write_evaluation(EvaluationJob(**job.config["evaluation"]), job.allowed, Path(job.run_dir))
    return RunOutcome(0, "evaluated")


if __name__ == "__main__":
    main(sys.argv[1])
