"""Replay in a rank of its own: ``python -m framework.commands.replay.replay_rank FILE``."""

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from framework.commands.train.start_rank import begin_rank

if TYPE_CHECKING:
    from framework.cli.outcome import RunOutcome
    from framework.commands.replay.step_again import ReplayedStep
    from framework.commands.train.run_ranks import RankedJob

PLACE = "place.json"  # in the job's folder: where the results are


def main(path: str) -> None:
    """Run the rank that ``FILE`` describes."""
    begin_rank(path)
    from framework.commands.train.run_ranks import run_rank  # noqa: PLC0415  # loads torch

    run_rank(path, replay_here)


def replay_here(job: "RankedJob") -> "RunOutcome":
    """Replay in this process, and note where the results are. Only rank 0 writes and prints."""
    from framework.cli.counted_bar import counted_bar  # noqa: PLC0415
    from framework.cli.outcome import RunOutcome  # noqa: PLC0415
    from framework.commands.replay.step_again import ReplayJob, replay_run  # noqa: PLC0415
    from framework.commands.replay.write_replay import write_replay  # noqa: PLC0415
    from framework.errors import say  # noqa: PLC0415
    from framework.system.durable import write_json  # noqa: PLC0415

    asked = ReplayJob(**job.config["replay"])

    def show(replayed: "ReplayedStep") -> None:
        place = write_replay(replayed, Path(asked.run))
        write_json(Path(job.run_dir, PLACE), str(place))

    if os.environ.get("RANK", "0") == "0":
        with counted_bar("replaying step") as update:
            tell = partial(say, file=sys.stderr)
            replay_run(
                asked,
                job.allowed,
                tell,
                lambda step, last: update(completed=step, total=last),
                show,
            )
    else:
        replay_run(asked, job.allowed, lambda _: None, lambda *_: None, show)
    return RunOutcome(0, "replayed")


if __name__ == "__main__":
    main(sys.argv[1])
