"""Diagnose a run of several ranks: start them here and on other hosts, or be one of them."""

import json
import os
from pathlib import Path
from typing import Any

from framework.cli.allowed import find_packages
from framework.cli.outcome import RunOutcome
from framework.cli.progress import pack_missing
from framework.cli.run_ranks import RankedJob, launch_ranks, read_job, run_rank
from framework.config.targets import check_targets
from framework.diagnosis.facts import RankFacts
from framework.parallel.meeting import Meeting, parse_endpoint
from framework.system.durable import write_json

MODULE = "framework.commands.diagnose.start_measuring"
FACTS = "ranks.json"
SECONDS = "seconds"  # the key in a job's configuration that says how long to measure


class RanksFailed(Exception):
    """The ranks of a diagnosis ended with an error, which they have printed."""

    def __init__(self, outcome: RunOutcome) -> None:
        super().__init__(outcome.reason)
        self.outcome = outcome


def measured_here(
    config: dict[str, Any], allowed: tuple[str, ...], folder: Path, seconds: float
) -> RankFacts | None:
    """Start this host's ranks, and return what all ranks measured.

    On a host that does not lead, return None: the leader prints the diagnosis.

    Args:
        config: Plain values, resolved.
        allowed: Prefixes of the user's packages.
        folder: An empty directory of this host.
        seconds: How long to measure.
    """
    parallel = config["parallel"]
    job = RankedJob({**config, SECONDS: seconds}, str(folder), allowed)
    meeting = None
    if parallel.get("num_nodes", 1) > 1:
        meeting = Meeting(parse_endpoint(parallel["endpoint"]), parallel["num_nodes"])
        if not meeting.leads:
            job = read_job(meeting.share(None))._replace(run_dir=str(folder), allowed=allowed)
            check_targets(job.config, allowed)
    pack_missing(job.config, job.allowed)
    try:
        outcome = launch_ranks(job, meeting, MODULE)
        if outcome.code:
            raise RanksFailed(outcome)
        if meeting is not None and not meeting.leads:
            return None
        return RankFacts.of(json.loads((folder / FACTS).read_text(encoding="utf-8")))
    finally:
        (folder / FACTS).unlink(missing_ok=True)


def measured_as_rank(job: RankedJob | None, seconds: float) -> RankFacts:
    """Measure as one rank of a launcher that is not ours. Rank 0 gives the job, others None."""
    from framework.parallel.meeting import share_text  # noqa: PLC0415  # loads torch

    if job is not None:
        pack_missing(job.config, job.allowed)
        share_text(job._replace(config={**job.config, SECONDS: seconds}).as_text())
    else:
        job = read_job(share_text(None))
        find_packages(job.allowed)
    return _measured(job)


def main(path: str) -> None:
    """Run one rank that ``launch_ranks`` has started, and end the process."""

    def measured(job: RankedJob) -> RunOutcome:
        facts = _measured(job)
        if os.environ["LOCAL_RANK"] == "0":
            write_json(Path(job.run_dir, FACTS), facts.as_dict())
        return RunOutcome(0, "measured")

    run_rank(path, measured)


def _measured(job: RankedJob) -> RankFacts:
    from framework.commands.diagnose.time_ranks import measure_ranks  # noqa: PLC0415  # loads torch

    config = dict(job.config)
    return measure_ranks(config, job.allowed, config.pop(SECONDS, 30.0))
