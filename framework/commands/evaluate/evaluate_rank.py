"""Evaluate in ranks: ``python -m framework.commands.evaluate.evaluate_rank FILE`` runs one rank."""

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from framework.system.stopping import die_with_parent, leave, set_all

if TYPE_CHECKING:
    from framework.cli.outcome import RunOutcome
    from framework.commands.train.run_ranks import RankedJob


def main(path: str) -> None:
    """Run the rank that ``FILE`` describes, a file that its launcher holds in memory."""
    die_with_parent()
    set_all(signal.SIG_DFL)  # there is nothing to save
    if not os.path.exists(path):  # the launcher has died
        os._exit(1)
    leave(_rank(path))


def _rank(path: str) -> int:
    # These load torch, after signals have got their meaning.
    from framework.cli.allowed import find_packages  # noqa: PLC0415
    from framework.commands.train.run_ranks import outcome_path, read_job  # noqa: PLC0415
    from framework.system.durable import uninterrupted, write_json  # noqa: PLC0415

    text = Path(path).read_text(encoding="utf-8")
    job = read_job(text)
    find_packages(job.allowed)
    outcome = job.outcome(evaluate_here)
    with uninterrupted():
        write_json(outcome_path(job, json.loads(text)["launcher"]), outcome._asdict())
    return outcome.code


def evaluate_here(job: "RankedJob") -> "RunOutcome":
    """Evaluate in this process, which may be one of several ranks. Rank 0 writes the results."""
    from framework.cli.outcome import RunOutcome  # noqa: PLC0415
    from framework.commands.evaluate.evaluation import EvaluationJob  # noqa: PLC0415
    from framework.commands.evaluate.write_evaluation import write_evaluation  # noqa: PLC0415

    write_evaluation(EvaluationJob(**job.config["evaluation"]), job.allowed, Path(job.run_dir))
    return RunOutcome(0, "evaluated")


if __name__ == "__main__":
    main(sys.argv[1])
