"""``paceline replay RUN step=N``: a step of a run again. Each of several ranks runs this module."""

import os
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from framework.cli.arguments import allowed_targets, granted
from framework.cli.outcome import RunOutcome, option, run_options
from framework.errors import say
from framework.system.stopping import message_if_stopped

if TYPE_CHECKING:
    from framework.cli.run_ranks import RankedJob


@dataclass(frozen=True)
class ReplayOptions:
    """A step of a run again: its records, their losses, and the gradients beside its neighbors'."""

    run: str = option(
        about="the directory of the run; 'paceline replay DIR' is short for run=DIR",
        means="the directory of a run",
    )
    step: str = option(
        about="a number; max:loss, min:accuracy or another metric of the log; "
        "nan: the first that is not finite",
        means="a number, max:METRIC, min:METRIC or nan",
        number=340,
    )
    allow_targets: list[str] = option([], "packages of your own that the run's _target_ may name")


def main(arguments: list[str]) -> int:
    """Run the command. A word that is not an override is the directory of the run."""
    return run_options("replay", arguments, ReplayOptions, partial(_replay, arguments), "run")


def _replay(arguments: list[str], options: ReplayOptions, folder: Path) -> RunOutcome:
    asked = {"allow_targets": options.allow_targets, "run": options.run}
    allowed = allowed_targets(asked, granted(arguments))
    with message_if_stopped("stopped{by}: nothing was written"):
        # These load torch, which a wrong key should not have to wait for.
        from framework.cli.run_ranks import RankedJob, launch_ranks  # noqa: PLC0415
        from framework.commands.replay.step_again import RunAgain  # noqa: PLC0415

        again = RunAgain(Path(options.run), options.step)
        parallel = again.history.config_of(again.search.first)["parallel"]
        asked = {"run": options.run, "step": options.step}
        config = {"replay": asked, "parallel": parallel, "debug": None}
        job = RankedJob(config, str(folder), allowed)
        if "num_processes" not in parallel:
            return job.outcome(replay_here)
        folder.mkdir(parents=True)  # for the outcomes of the ranks
        return job.outcome(partial(launch_ranks, module="framework.commands.replay.replay"))


def replay_here(job: "RankedJob") -> RunOutcome:
    """Replay in this process. Only rank 0 writes and prints."""
    from framework.cli.tables import counted_bar  # noqa: PLC0415
    from framework.commands.replay.step_again import RunAgain, show_replay  # noqa: PLC0415

    run_dir, step = Path(job.config["replay"]["run"]), job.config["replay"]["step"]
    if os.environ.get("RANK", "0") != "0":
        RunAgain(run_dir, step, job.allowed).take()
        return RunOutcome(0, "replayed")
    with counted_bar("replaying step") as update:
        note = partial(say, file=sys.stderr)
        replayed = RunAgain(run_dir, step, job.allowed, note, update).take()
    show_replay(*replayed, run_dir)
    return RunOutcome(0, "replayed")


if __name__ == "__main__":
    from framework.cli.signals import begin_rank

    begin_rank(sys.argv[1])
    from framework.cli.run_ranks import run_rank  # loads torch

    run_rank(sys.argv[1], replay_here)
