"""Run in this process, or in ranks in processes of their own, each started through
``start_rank``.
"""

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

from framework.cli.outcome import (
    RunOutcome,
    conclude,
    newest_checkpoint,
    outcome_of,
    told_code,
)
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

# with these exit codes a rank would only fail again
LASTING = tuple(
    kind.exit_code
    for kind in (ConfigError, DataError, CheckpointError, NumericError, UserCodeError)
)


def run_here(
    config: Config,
    run_dir: Path,
    allowed: tuple[str, ...],
    meeting: Meeting | None = None,
    in_sweep: bool = False,
) -> RunOutcome:
    """Prepare the data, then train in this process or in ranks that are started for it.

    Args:
        config: Plain values, resolved.
        run_dir: The directory of the run.
        allowed: Prefixes of the user's packages.
        meeting: How to meet the other hosts of the run, or None.
        in_sweep: Whether the run is one of many in this process. DALI never frees its memory pools
            (NVIDIA/DALI#3480), so such a job with DALI gets a process of its own.

    """
    pack_missing(config, allowed)  # a signal ends the command at once: there is nothing to save yet
    apart = in_sweep and config["data"]["source"]["_target_"] == DALI
    if ("num_processes" in config["parallel"] or apart) and "RANK" not in os.environ:
        return _launch(config, run_dir, allowed, meeting)
    return _run(config, run_dir, allowed, StopSignals(of_rank=False))


def follow(meeting: Meeting, allowed: tuple[str, ...]) -> int:
    """Start this host's ranks of the run that another host leads. Return the exit code.

    ``allowed`` was typed on this host: the leader cannot extend it.
    """
    shared = json.loads(meeting.share(None))
    config = shared["config"]
    run_dir = Path(shared["run_dir"])
    check_targets(config, allowed)
    action = partial(run_here, config, run_dir, allowed, meeting)
    outcome = outcome_of(action, run_dir, bool(config["debug"]), allowed)
    return told_code(outcome)


def _run(
    config: Config, run_dir: Path, allowed: tuple[str, ...], signals: StopSignals
) -> RunOutcome:
    with signals:
        summary = run(config, run_dir, allowed, signals.stopped, _say)
    step = summary["steps"]
    if summary["status"] != "interrupted":
        return RunOutcome(0, "finished", step)
    command = f"paceline train {shlex.quote(f'resume={run_dir}')}"
    reason = f"stopped after step {step}, state saved; continue with: {command}"
    return RunOutcome(signals.exit_code, reason, step)


def _say(text: str) -> None:
    print(text, file=sys.stderr)


def _launch(
    config: Config, run_dir: Path, allowed: tuple[str, ...], meeting: Meeting | None
) -> RunOutcome:
    """Start the ranks and wait for them.

    They write their outcomes to files: a launcher sees only exit codes.
    """
    # torch.distributed.elastic is slow to import
    from framework.parallel.launch.start_ranks import launch  # noqa: PLC0415

    parallel = config["parallel"]
    num_processes = parallel.get("num_processes", 1)
    shared = {"config": config, "run_dir": str(run_dir), "allowed": allowed}
    if meeting is None or meeting.leads:
        _read_outcomes(run_dir, "*")  # left by ranks that were killed together with their launcher
    if meeting is not None and meeting.leads:
        meeting.share(json.dumps(shared))
    launcher = f"{socket.gethostname()}-{os.getpid()}"
    failure = ""
    tidy = undone(lambda _: (_read_outcomes(run_dir, launcher), remove_leftovers()))
    with tidy, _in_memory(json.dumps({**shared, "launcher": launcher})) as path:
        try:
            signal_number = launch(
                num_processes,
                "framework.commands.train.start_rank",
                [path],
                _environment(num_processes, meeting),
                parallel.get("max_restarts", 0),
                meeting,
            )
        except DistributedError as error:
            signal_number = 0
            failure = str(error)
    # a second signal must not change how the run ends
    StopSignals(of_rank=False).__enter__()
    outcomes = _read_outcomes(run_dir, launcher)
    silent: list[int] = []
    if meeting is None:
        silent = [rank for rank in range(num_processes) if rank not in outcomes]
    if signal_number and silent:  # killed by the launcher before they could stop by themselves
        reason = f"stopped at once; {newest_checkpoint(run_dir)}"
        return RunOutcome(exit_code(signal_number), reason)
    return _cause(list(outcomes.values()), silent, failure)


def _environment(num_processes: int, meeting: Meeting | None) -> dict[str, str]:
    """Return the ranks' own variables: their share of the cores, and the interface to other
    hosts.
    """
    environment = {"OMP_NUM_THREADS": str(max(1, num_cores() // num_processes))}
    interface = meeting and meeting.interface
    if interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        environment["GLOO_SOCKET_IFNAME"] = interface  # gloo would guess it from the host's name
    return environment


@contextmanager
def _in_memory(text: str) -> Generator[str, None, None]:
    """Yield the path of a file in memory.

    Its text holds the environment's secrets, so no disk may have it.
    """
    with os.fdopen(os.memfd_create("paceline"), "w") as file:
        file.write(text)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def _read_outcomes(run_dir: Path, launcher: str) -> dict[int, RunOutcome]:
    """Return the outcomes of a launcher's ranks, the earliest first, and remove their files."""
    paths = run_dir.glob(f"exit.rank*.{launcher}.json")
    outcomes: dict[int, RunOutcome] = {}
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        rank = int(path.name.split(".")[1].removeprefix("rank"))
        outcome = RunOutcome(**json.loads(path.read_text(encoding="utf-8")))
        outcomes[rank] = outcome._replace(rank=rank if outcome.code else None)
        path.unlink()
    return outcomes


def _cause(outcomes: list[RunOutcome], silent: list[int], failure: str) -> RunOutcome:
    """Return the outcome that explains the others.

    That is the first rank with an error of its own, then a rank that left no outcome, then any.
    """
    own = [outcome for outcome in outcomes if outcome.code not in (0, DistributedError.exit_code)]
    if own:
        return own[0]
    if outcomes and not failure:
        return outcomes[0]
    if silent:
        fix = "was it killed? look at memory and the system's log"
        lost = DistributedError(102, f"rank {silent[0]}", "ended without a word", fix)
        steps = [outcome.step for outcome in outcomes if outcome.step is not None]
        return RunOutcome(lost.exit_code, str(lost), max(steps, default=None), silent[0])
    failed = RunOutcome(DistributedError.exit_code, failure)
    return next((outcome for outcome in outcomes if outcome.code), failed)


def run_shared(composed: Config | None) -> int:
    """Run one rank under a launcher that is not ours, such as torchrun. Return the exit code.

    Args:
        composed: What rank 0 composed. The other ranks pass None and get it through the
            launcher's store.

    """
    from framework.parallel.launch.ranks import share_text  # noqa: PLC0415

    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()  # torchrun's agent, when killed, leaves its ranks running
    shared = composed or json.loads(share_text(None))
    run_dir = Path(shared["run_dir"])
    action = partial(_run_shared, shared, composed is not None)
    outcome = outcome_of(action, run_dir, bool(shared["config"]["debug"]), shared["allowed"])
    if composed is not None:
        return conclude(outcome, run_dir, short=False)
    return told_code(outcome)


def _run_shared(shared: Config, leads: bool) -> RunOutcome:
    from framework.parallel.launch.ranks import share_text  # noqa: PLC0415

    config = shared["config"]
    allowed = tuple(shared["allowed"])
    if leads:
        pack_missing(config, allowed)  # before the other ranks start, which read what is packed
        share_text(json.dumps(shared))
    return _run(config, Path(shared["run_dir"]), allowed, StopSignals(of_rank=True))


def main(path: str) -> NoReturn:
    """Run one rank that ``_launch`` has started, and end the process."""
    leave(_rank(path))


def _rank(path: str) -> int:
    """Train, and return the exit code.

    The launcher restarts all ranks unless the code is 0. A rank that was told to stop therefore
    returns 0, and only its file says so.
    """
    shared = json.loads(Path(path).read_text(encoding="utf-8"))
    run_dir = Path(shared["run_dir"])
    config = shared["config"]
    allowed = tuple(shared["allowed"])
    if allowed:
        sys.path.append(os.getcwd())
    result = run_dir / f"exit.rank{os.environ['RANK']}.{shared['launcher']}.json"
    if result.exists():
        code = json.loads(result.read_text(encoding="utf-8"))["code"]
        if code in LASTING:
            return code
    result.unlink(missing_ok=True)
    _say_restart(config)
    signals = StopSignals(of_rank=True)
    action = partial(_run, _restartable(config, run_dir), run_dir, allowed, signals)
    outcome = outcome_of(action, run_dir, bool(config["debug"]), allowed)
    write_json(result, outcome._asdict())
    if outcome.code not in (EXIT_INTERRUPTED, EXIT_PREEMPTED):
        return outcome.code
    # stopped on another host: this host's launcher, which waits for nobody, has to know
    if not signals.stopped() and config["parallel"].get("num_nodes", 1) > 1:
        os.kill(os.getppid(), signal.SIGUSR1)
    return 0


def _restartable(config: Config, run_dir: Path) -> Config:
    """Make a restarted rank continue from what its earlier start has saved in the run's own
    directory.
    """
    resume = config["resume"]
    if resume["run"]:
        return config
    return {**config, "resume": {**resume, "run": str(run_dir), "auto": True}}


def _say_restart(config: Config) -> None:
    number = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ["RANK"] == "0" and number != "0":
        count = f"{number} of {config['parallel']['max_restarts']}"
        _say(f"note: a rank was lost; all start again ({count}), from the newest state")
