"""A run in this process, and ranks in processes of their own. ``python -m framework.cli.rank FILE`` is one rank."""

import json
import os
import shlex
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from framework.assemble import prepare
from framework.cli.main import leave
from framework.cli.outcome import Outcome, conclude, newest_checkpoint, outcome_of
from framework.cli.progress import pack_with_progress
from framework.cli.signals import StopSignals
from framework.durable import write_json
from framework.errors import EXIT_INTERRUPTED, DistributedError
from framework.measure.host import die_with_parent, num_cores
from framework.run import run

Config = dict[str, Any]


def run_here(config: Config, run_dir: Path, allowed: tuple[str, ...]) -> Outcome:
    """Prepare the data, then train in this process, or in ranks started for it."""
    prepare(config, allowed, pack_with_progress)  # a signal here ends the command at once: there is nothing to save yet
    if "num_processes" in config["parallel"] and "RANK" not in os.environ:
        return _launch(config, run_dir, allowed)
    return _run(config, run_dir, allowed)


def _run(config: Config, run_dir: Path, allowed: tuple[str, ...]) -> Outcome:
    with StopSignals() as signals:
        summary = run(config, run_dir, allowed, signals.stopped, _say)
    if summary["status"] != "interrupted":
        return Outcome(0, "finished", summary["steps"])
    step = summary["steps"]
    return Outcome(signals.exit_code, f"stopped after step {step}, state saved; go on with: {_resume_command(run_dir)}", step)


def _resume_command(run_dir: Path) -> str:
    return f"paceline train {shlex.quote(f'resume={run_dir}')}"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _launch(config: Config, run_dir: Path, allowed: tuple[str, ...]) -> Outcome:
    """Start the ranks and wait. Their own words about what went wrong are in files, since a launcher knows only exit codes."""
    from framework.parallel.ddp import launch  # noqa: PLC0415  # torch.distributed.elastic is slow to import

    num_processes = config["parallel"]["num_processes"]
    _read_outcomes(run_dir)  # of ranks that were killed together with who should have read them
    threads = str(max(1, num_cores() // num_processes))
    failed = ""
    with _in_memory(json.dumps({"config": config, "run_dir": str(run_dir), "allowed": allowed})) as path:
        try:
            signal_number = launch(num_processes, "framework.cli.rank", [path], {"OMP_NUM_THREADS": threads})
        except DistributedError as error:
            signal_number, failed = 0, str(error)
    said = _read_outcomes(run_dir)
    silent = [rank for rank in range(num_processes) if rank not in said]
    if signal_number and silent:  # killed by the launcher before they could stop by themselves
        return Outcome(EXIT_INTERRUPTED, f"stopped at once; {newest_checkpoint(run_dir)}")
    return _verdict(list(said.values()), silent, failed)


@contextmanager
def _in_memory(text: str) -> Generator[str, None, None]:
    """A file for processes that we start, and that no disk ever holds, since the environment's secrets are in it: its path."""
    with os.fdopen(os.memfd_create("paceline"), "w") as file:
        file.write(text)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _read_outcomes(run_dir: Path) -> dict[int, Outcome]:
    """What each rank said, the earliest first."""
    paths = sorted(run_dir.glob("exit.rank*.json"), key=lambda path: path.stat().st_mtime_ns)
    outcomes: dict[int, Outcome] = {}
    for path in paths:
        rank, outcome = int(path.name.split(".")[1][4:]), Outcome(**json.loads(path.read_text(encoding="utf-8")))
        outcomes[rank] = outcome._replace(rank=rank if outcome.code else None)
        path.unlink()
    return outcomes


def _verdict(said: list[Outcome], silent: list[int], failed: str) -> Outcome:
    """The cause: the first rank with an error of its own; else one that ended without a word; else what all say."""
    own = [outcome for outcome in said if outcome.code not in (0, DistributedError.exit_code)]
    if own or not failed:
        return own[0] if own else said[0]
    if silent:
        lost = DistributedError(
            102, f"rank {silent[0]}", "ended without a word", "was it killed? look at memory and the system's log"
        )
        steps = [outcome.step for outcome in said if outcome.step is not None]
        return Outcome(lost.exit_code, str(lost), max(steps, default=None), silent[0])
    return next((outcome for outcome in said if outcome.code), Outcome(DistributedError.exit_code, failed))


def run_shared(mine: Config | None) -> int:
    """One rank under a launcher that is not ours. Rank 0 brings what it composed; the others get it through the launcher's store."""
    from framework.parallel.ddp import share_text  # noqa: PLC0415

    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # torchrun's agent, when killed, leaves its ranks running
    shared = mine or json.loads(share_text(None))
    run_dir = Path(shared["run_dir"])
    outcome = outcome_of(partial(_run_shared, shared, mine is not None), run_dir, bool(shared["config"]["debug"]))
    if mine is not None:
        return conclude(outcome, run_dir, short=False)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def _run_shared(shared: Config, leads: bool) -> Outcome:
    from framework.parallel.ddp import share_text  # noqa: PLC0415

    config, allowed = shared["config"], tuple(shared["allowed"])
    if leads:
        prepare(config, allowed, pack_with_progress)  # before the others hear of it: they read what is packed
        share_text(json.dumps(shared))
    return _run(config, Path(shared["run_dir"]), allowed)


def main(path: str) -> int:
    """One rank started by ``_launch``."""
    die_with_parent()
    shared = json.loads(Path(path).read_text(encoding="utf-8"))
    run_dir, config, allowed = Path(shared["run_dir"]), shared["config"], tuple(shared["allowed"])
    if allowed:
        sys.path.append(os.getcwd())
    outcome = outcome_of(partial(_run, config, run_dir, allowed), run_dir, bool(config["debug"]))
    rank = os.environ["RANK"]
    write_json(run_dir / f"exit.rank{rank}.json", outcome._asdict())
    return outcome.code


if __name__ == "__main__":
    leave(main(sys.argv[1]))
