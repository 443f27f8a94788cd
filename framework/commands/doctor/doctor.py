"""``paceline doctor``: say in ten seconds what helps or hurts on this machine."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from framework.cli.outcome import RunOutcome, option, run_options
from framework.errors import say


@dataclass(frozen=True)
class DoctorOptions:
    """Say what helps or hurts on this machine, and on the disk of the present folder."""

    json: bool = option(False, "or --json: all findings as one JSON object")


def main(arguments: list[str]) -> int:
    return run_options("doctor", arguments, DoctorOptions, _doctor)


def _doctor(options: DoctorOptions, _: Path) -> RunOutcome:
    # This loads torch, which a wrong key should not have to wait for.
    from framework.commands.doctor import machine_checks  # noqa: PLC0415

    findings: list[dict[str, Any]] = []
    for finding in machine_checks.findings(Path()):
        findings.append({**finding._asdict(), "figures": {**finding.figures}})
        if not options.json:
            say(f"{'helps' if finding.helps else 'hurts'}  {finding.name:11}  {finding.what}")
            if finding.advice:
                say(f"{'':20}{finding.advice}")
    if options.json:
        print(json.dumps({"findings": findings}))
    return RunOutcome(0, "finished")
