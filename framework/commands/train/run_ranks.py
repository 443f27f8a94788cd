"""A run in this process, and ranks in processes of their own, each of which ``start_rank`` starts."""

import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from framework.cli.outcome import RunOutcome, conclude, newest_checkpoint, outcome_of
from framework.cli.progress import pack_missing
from framework.cli.signals import StopSignals
from framework.config.schema import DALI
from framework.config.targets import check_targets
from framework.errors import (
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    CheckpointError,
    ConfigError,
    DataError,
    DistributedError,
    NumericError,
    UserCodeError,
)
from framework.measure.host import num_cores
from framework.parallel.launch.hosts import Meeting
from framework.run import run
from framework.store.staging import remove_leftovers
from framework.system.durable import write_json
from framework.system.stopping import die_with_parent, exit_code, leave, undone

Config = dict[str, Any]
# what a rank would only end with again
LASTING = tuple(
    kind.exit_code
    for kind in (ConfigError, DataError, CheckpointError, NumericError, UserCodeError)
)


def run_here(
    config: Config,
    run_dir: Path,
    allowed: tuple[str, ...],
    meeting: Meeting | None = None,
    one_of_many: bool = False,
) -> RunOutcome:
    """Prepare the data, then train in this process, or in ranks started for it; with those of other hosts, where there is a ``meeting``.

    ``one_of_many``: jobs of a sweep. One whose library keeps memory for good (DALI's pools: NVIDIA/DALI#3480) gets a process of its own, as if it were a rank.
    """
    pack_missing(
        config, allowed
    )  # a signal here ends the command at once: there is nothing to save yet
    apart = one_of_many and config["data"]["source"]["_target_"] == DALI
    if ("num_processes" in config["parallel"] or apart) and "RANK" not in os.environ:
        return _launch(config, run_dir, allowed, meeting)
    return _run(config, run_dir, allowed, StopSignals(of_rank=False))


def follow(meeting: Meeting, allowed: tuple[str, ...]) -> int:
    """Start this host's ranks of the run that another host leads; returns the exit code. What may be called was said here, not there."""
    shared = json.loads(meeting.share(None))
    config, run_dir = shared["config"], Path(shared["run_dir"])
    check_targets(config, allowed)
    outcome = outcome_of(
        partial(run_here, config, run_dir, allowed, meeting),
        run_dir,
        bool(config["debug"]),
        allowed,
    )
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def _run(config: Config, run_dir: Path, allowed: tuple[str, ...], heard: StopSignals) -> RunOutcome:
    with heard:
        summary = run(config, run_dir, allowed, heard.stopped, _say)
    if summary["status"] != "interrupted":
        return RunOutcome(0, "finished", summary["steps"])
    step = summary["steps"]
    return RunOutcome(
        heard.exit_code,
        f"stopped after step {step}, state saved; go on with: {_resume_command(run_dir)}",
        step,
    )


def _resume_command(run_dir: Path) -> str:
    return f"paceline train {shlex.quote(f'resume={run_dir}')}"


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _launch(
    config: Config, run_dir: Path, allowed: tuple[str, ...], meeting: Meeting | None
) -> RunOutcome:
    """Start the ranks and wait. Their own words about what went wrong are in files, since a launcher knows only exit codes."""
    from framework.parallel.launch.start_ranks import launch  # noqa: PLC0415  # torch.distributed.elastic is slow to import

    chosen = config["parallel"]
    num_processes, max_restarts = chosen.get("num_processes", 1), chosen.get("max_restarts", 0)
    shared = {"config": config, "run_dir": str(run_dir), "allowed": allowed}
    if meeting is None or meeting.leads:
        _read_outcomes(
            run_dir, "*"
        )  # of ranks that were killed together with who should have read them
    if meeting is not None and meeting.leads:
        meeting.share(json.dumps(shared))
    mine = f"{socket.gethostname()}-{os.getpid()}"
    failed = ""
    tidy = undone(lambda _: (_read_outcomes(run_dir, mine), remove_leftovers()))
    with tidy, _in_memory(json.dumps({**shared, "launcher": mine})) as path:
        try:
            environment = _environment(num_processes, meeting)
            signal_number = launch(
                num_processes,
                "framework.commands.train.start_rank",
                [path],
                environment,
                max_restarts,
                meeting,
            )
        except DistributedError as error:
            signal_number, failed = 0, str(error)
    StopSignals(
        of_rank=False
    ).__enter__()  # a signal that comes twice must not change how the run ends
    said = _read_outcomes(run_dir, mine)
    silent = [rank for rank in range(num_processes) if rank not in said] if meeting is None else []
    if signal_number and silent:  # killed by the launcher before they could stop by themselves
        return RunOutcome(
            exit_code(signal_number), f"stopped at once; {newest_checkpoint(run_dir)}"
        )
    return _verdict(list(said.values()), silent, failed)


def _environment(num_processes: int, meeting: Meeting | None) -> dict[str, str]:
    """The ranks' own: cores shared out; and the way to other hosts, which gloo would guess from this one's name."""
    threads = {"OMP_NUM_THREADS": str(max(1, num_cores() // num_processes))}
    interface = meeting and meeting.interface
    return (
        {**threads, "GLOO_SOCKET_IFNAME": interface}
        if interface and "GLOO_SOCKET_IFNAME" not in os.environ
        else threads
    )


@contextmanager
def _in_memory(text: str) -> Generator[str, None, None]:
    """A file for processes that we start, and that no disk ever holds, since the environment's secrets are in it: its path."""
    with os.fdopen(os.memfd_create("paceline"), "w") as file:
        file.write(text)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _read_outcomes(run_dir: Path, launcher: str) -> dict[int, RunOutcome]:
    """What each rank of a launcher said, the earliest first."""
    paths = sorted(
        run_dir.glob(f"exit.rank*.{launcher}.json"), key=lambda path: path.stat().st_mtime_ns
    )
    outcomes: dict[int, RunOutcome] = {}
    for path in paths:
        rank, outcome = (
            int(path.name.split(".")[1][4:]),
            RunOutcome(**json.loads(path.read_text(encoding="utf-8"))),
        )
        outcomes[rank] = outcome._replace(rank=rank if outcome.code else None)
        path.unlink()
    return outcomes


def _verdict(said: list[RunOutcome], silent: list[int], failed: str) -> RunOutcome:
    """The cause: the first rank with an error of its own; else one that ended without a word; else what all say."""
    own = [outcome for outcome in said if outcome.code not in (0, DistributedError.exit_code)]
    if own or (said and not failed):
        return own[0] if own else said[0]
    if silent:
        lost = DistributedError(
            102,
            f"rank {silent[0]}",
            "ended without a word",
            "was it killed? look at memory and the system's log",
        )
        steps = [outcome.step for outcome in said if outcome.step is not None]
        return RunOutcome(lost.exit_code, str(lost), max(steps, default=None), silent[0])
    return next(
        (outcome for outcome in said if outcome.code),
        RunOutcome(DistributedError.exit_code, failed),
    )


def run_shared(mine: Config | None) -> int:
    """One rank under a launcher that is not ours. Rank 0 brings what it composed; the others get it through the launcher's store."""
    from framework.parallel.launch.ranks import share_text  # noqa: PLC0415

    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # torchrun's agent, when killed, leaves its ranks running
    shared = mine or json.loads(share_text(None))
    run_dir = Path(shared["run_dir"])
    action, show_traceback = (
        partial(_run_shared, shared, mine is not None),
        bool(shared["config"]["debug"]),
    )
    outcome = outcome_of(action, run_dir, show_traceback, shared["allowed"])
    if mine is not None:
        return conclude(outcome, run_dir, short=False)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def _run_shared(shared: Config, leads: bool) -> RunOutcome:
    from framework.parallel.launch.ranks import share_text  # noqa: PLC0415

    config, allowed = shared["config"], tuple(shared["allowed"])
    if leads:
        pack_missing(config, allowed)  # before the others hear of it: they read what is packed
        share_text(json.dumps(shared))
    return _run(config, Path(shared["run_dir"]), allowed, StopSignals(of_rank=True))


def main(path: str) -> NoReturn:
    """One rank started by ``_launch``."""
    leave(_rank(path))


def _rank(path: str) -> int:
    """Train; returns the exit code, which the launcher takes as a reason to start all ranks again: 0 where they were
    told to stop, since that is no failure; the file tells.
    """
    shared = json.loads(Path(path).read_text(encoding="utf-8"))
    run_dir, config, allowed = Path(shared["run_dir"]), shared["config"], tuple(shared["allowed"])
    if allowed:
        sys.path.append(os.getcwd())
    said = run_dir / f"exit.rank{os.environ['RANK']}.{shared['launcher']}.json"
    if said.exists() and (code := json.loads(said.read_text(encoding="utf-8"))["code"]) in LASTING:
        return code
    said.unlink(missing_ok=True)
    _tell_restart(config)
    signals = StopSignals(of_rank=True)
    action = partial(_run, _restartable(config, run_dir), run_dir, allowed, signals)
    outcome = outcome_of(action, run_dir, bool(config["debug"]), allowed)
    write_json(said, outcome._asdict())
    if outcome.code not in (EXIT_INTERRUPTED, EXIT_PREEMPTED):
        return outcome.code
    if (
        not signals.stopped() and config["parallel"].get("num_nodes", 1) > 1
    ):  # told on another host, whose launcher waits for nobody
        os.kill(os.getppid(), signal.SIGUSR1)
    return 0


def _restartable(config: Config, run_dir: Path) -> Config:
    """Going on from what an earlier start of the same ranks has saved: the directory was this run's alone."""
    resume = config["resume"]
    return (
        config
        if resume["run"]
        else {**config, "resume": {**resume, "run": str(run_dir), "auto": True}}
    )


def _tell_restart(config: Config) -> None:
    number = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ["RANK"] == "0" and number != "0":
        _say(
            f"note: a rank was lost; all start again ({number} of {config['parallel']['max_restarts']}), from the newest state"
        )
