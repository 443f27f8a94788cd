"""Pack what is missing, then run in this process, or in ranks that are started for it."""

import json
import os
import shlex
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from hydra.core.hydra_config import HydraConfig

from framework import errors
from framework.cli import outcome, tables
from framework.cli.arguments import find_packages
from framework.cli.outcome import RunOutcome
from framework.cli.signals import StopSignals
from framework.config import prepare_data, schema, targets
from framework.contracts.records import is_numbered, notes_of
from framework.measure.host import num_cores
from framework.pack.pack_store import pack
from framework.pack.packing import Packed, Packing
from framework.parallel.hang import end_useless, hung_rank
from framework.parallel.start_ranks import Meeting, share_text
from framework.run import run
from framework.store.staging import remove_leftovers
from framework.system import durable, stopping
from framework.system.run_dir import note, noted
from framework.system.run_log import OWN, logged

Config = dict[str, Any]

FAULTS = (errors.ConfigError, errors.DataError, errors.CheckpointError, errors.NumericError)
# with these exit codes a rank would only fail again
LASTING = [kind.exit_code for kind in (*FAULTS, errors.UserCodeError)]


def _say(text: str) -> None:
    errors.say(text, sys.stderr)
    OWN.info("%s", text)


def _note(text: str) -> None:
    _say(f"note: {text}")


def print_notes(part: object) -> None:
    """Print what the user should know about an input, or about the rule of splits."""
    for text in notes_of(part):
        _note(text)


def pack_missing(config: Config, allowed: Sequence[str]) -> None:
    """Pack the stores that ``config`` describes and that are missing.

    Print a note for an existing store that was packed from another source than the typed one.
    """
    typed = HydraConfig.get().overrides.task if HydraConfig.initialized() else []
    if any(word.lstrip("+").startswith(("source=", "prepare.")) for word in typed):
        for path, source in prepare_data.packed_from_others(config):
            words = f"{path} was packed before, from {source}, and is read as it is"
            _note(f"{words}; dataset=OTHER packs anew")
    prepare_data.prepare(config, allowed, show_packing, _note)


def show_packing(packing: Packing, num_workers: int | None = None) -> Packed:
    """Pack with a progress bar on standard error, and print what was made."""
    with tables.progress_bar(packing.path) as (console, tell):
        packed = pack(packing, num_workers, tell, on_note=_note)
    manifest = packed.manifest
    lines: list[str] = []
    if manifest is not None and manifest.classes:
        names = [f"{number} = {name}" for number, name in enumerate(manifest.classes)]
        labels = errors.printable(errors.listed(names))
        if is_numbered(manifest.classes):
            labels = f"numbers as they are, 0 to {len(names) - 1}"
        lines.append(f"labels: {labels}")
    total = sum(split.num_records for split in packed.splits)
    for split in packed.splits:
        share = f"{split.num_records / total:.2%} of the records"
        lines.append(f"{split.name}: {split.num_records} records, {share}, in {split.path}")
    if manifest is not None:
        end = f"packed {manifest.num_records} records into {', '.join(packing.paths.values())}: "
        end += f"{packed.num_bytes:,} bytes, {packed.seconds:.1f} s, "
        end += f"{manifest.num_records / packed.seconds:,.0f} records/s, {len(packed.bad)} skipped"
        if packed.resumed:
            end += f" ({packed.resumed} items had been finished before)"
    else:
        others = "another part has made the store"
        if packed.waiting:
            others = f"{packed.waiting} jobs of other parts are not done yet: "
            others += "the last part to end makes the store"
        end = f"part {packing.part} of {packing.parts} is done; {others}"
    console.print("\n".join([*lines, end]), soft_wrap=True)
    sys.stderr.flush()
    return packed


class RankedJob(NamedTuple):
    """What every process of a run needs to know."""

    config: Config  # plain values, resolved
    run_dir: str
    allowed: tuple[str, ...]  # prefixes of the user's packages

    def outcome(self, action: Callable[..., RunOutcome], *arguments: Any) -> RunOutcome:
        """Return how ``action(self, ...)`` ended, whatever happens in it."""

        def attempt() -> RunOutcome:
            try:
                return action(self, *arguments)
            except Exception as error:
                fault = outcome.runtime_error(error, outcome.PEER_LOST)
                hung = None
                if fault is not None and "RANK" in os.environ:  # does another rank hang?
                    timeout_s = self.config["parallel"].get("timeout_s", 0.0)
                    hung = hung_rank(fault, int(os.environ["RANK"]), timeout_s)
                if hung is None:
                    raise
                raise hung from error

        debugs = bool(self.config["debug"])
        return outcome.outcome_of(attempt, Path(self.run_dir), debugs, self.allowed)

    def as_text(self, **more: str) -> str:
        return json.dumps({**self._asdict(), "secrets": noted(), **more})


def read_job(text: str) -> RankedJob:
    values = json.loads(text)
    note(values["secrets"])
    return RankedJob(values["config"], values["run_dir"], tuple(values["allowed"]))


def run_here(job: RankedJob, meeting: Meeting | None = None, in_sweep: bool = False) -> RunOutcome:
    """Prepare the data, then train in this process or in ranks that are started for it."""
    # a signal ends the command at once here: there is nothing to save yet
    pack_missing(job.config, job.allowed)
    # DALI never frees its memory pools (NVIDIA/DALI#3480): each job of a sweep has its own process
    apart = in_sweep and job.config["data"]["source"]["_target_"] == schema.DALI
    if ("num_processes" in job.config["parallel"] or apart) and "RANK" not in os.environ:
        return launch_ranks(job, meeting)
    return _train(job, StopSignals(of_rank=False))


def follow(meeting: Meeting, allowed: tuple[str, ...]) -> int:
    """Start this host's ranks of the run that another host leads. Return the exit code."""
    # ``allowed`` was typed on this host: the leader cannot extend it.
    job = read_job(meeting.share(None))._replace(allowed=allowed)
    targets.check_targets(job.config, allowed)
    return outcome.report_failure(job.outcome(run_here, meeting))


def run_shared(composed: RankedJob | None) -> int:
    """Run one rank under a launcher that is not ours, such as torchrun. Return the exit code.

    Rank 0 composes the job. The other ranks pass None and get it through the launcher's store.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        stopping.die_with_parent()  # torchrun's agent, when killed, leaves its ranks running

    def share_and_train(job: RankedJob) -> RunOutcome:
        find_packages(job.allowed)
        if composed is not None:
            pack_missing(job.config, job.allowed)  # before the other ranks start, which read it
            share_text(job.as_text())
        return _train(job, StopSignals(of_rank=True))

    job = composed or read_job(share_text(None))
    with logged(Path(job.run_dir)):
        ended = job.outcome(share_and_train)
        if composed is not None:
            outcome.conclude(ended, Path(job.run_dir), short=False)
        else:
            outcome.log_end(ended)
            outcome.report_failure(ended)
    end_useless()
    return ended.code


def _train(job: RankedJob, signals: StopSignals) -> RunOutcome:
    with signals:
        summary = run(job.config, Path(job.run_dir), job.allowed, signals.stopped, _say)
    step = summary["steps"]
    if summary["status"] != "interrupted":
        reason = summary.get("reason")
        return RunOutcome(0, f"finished early: {reason}" if reason else "finished", step)
    command = f"paceline train {shlex.quote(f'resume={job.run_dir}')}"
    reason = f"stopped after step {step}, state saved; continue with: {command}"
    return RunOutcome(signals.exit_code, reason, step)


def launch_ranks(
    job: RankedJob, meeting: Meeting | None = None, module: str = "framework.cli.start_rank"
) -> RunOutcome:
    """Start the ranks, each of which runs ``module`` on the job, and wait for them."""
    # torch.distributed.elastic is slow to import
    from framework.parallel.start_ranks import launch  # noqa: PLC0415

    run_dir = Path(job.run_dir)
    parallel = job.config["parallel"]
    num_processes = parallel.get("num_processes", 1)
    if meeting is None or meeting.leads:
        _read_outcomes(run_dir, "*")  # left by ranks that were killed together with their launcher
    if meeting is not None and meeting.leads:
        meeting.share(job.as_text())
    launcher = f"{socket.gethostname()}-{os.getpid()}"
    environment = {"OMP_NUM_THREADS": str(max(1, num_cores() // num_processes))}
    if meeting and meeting.interface and "GLOO_SOCKET_IFNAME" not in os.environ:
        environment["GLOO_SOCKET_IFNAME"] = meeting.interface  # gloo would guess it from the name
    signal_number, failure = 0, ""
    tidy = stopping.undone(lambda _: (_read_outcomes(run_dir, launcher), remove_leftovers()))
    with tidy, _secret_file(job.as_text(launcher=launcher)) as path:
        restarts = parallel.get("max_restarts", 0)
        try:
            signal_number = launch(num_processes, module, [path], environment, restarts, meeting)
        except errors.DistributedError as error:
            failure = str(error)
    # a second signal must not change how the run ends
    StopSignals(of_rank=False).__enter__()
    outcomes = _read_outcomes(run_dir, launcher)  # in files: a launcher sees only exit codes
    durable.remove_leftovers(run_dir)  # of ranks that were killed while they wrote
    silent = [rank for rank in range(num_processes) if meeting is None and rank not in outcomes]
    if signal_number and silent:  # killed by the launcher before they could stop by themselves
        reason = f"stopped at once; {outcome.newest_checkpoint(run_dir)}"
        return RunOutcome(stopping.exit_code(signal_number), reason)
    return _cause(outcomes, silent, failure)


@contextmanager
def _secret_file(text: str) -> Generator[str]:
    """Yield the path of a file that only we can read, since it holds the environment's secrets.

    It lies in memory, and on macOS and Windows in a folder of ours that is removed.
    """
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("paceline"), "w") as file:
            file.write(text)
            file.flush()
            yield f"/proc/{os.getpid()}/fd/{file.fileno()}"
        return
    with stopping.scratch_folder("paceline-ranks-") as folder:  # nobody else may enter it
        path = Path(folder, "job.json")
        path.write_text(text, encoding="utf-8")
        yield str(path)


def _read_outcomes(run_dir: Path, launcher: str) -> dict[int, RunOutcome]:
    """Return the outcomes of a launcher's ranks, the earliest first, and remove their files."""
    paths = run_dir.glob(f"exit.rank*.{launcher}.json")
    outcomes: dict[int, RunOutcome] = {}
    for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
        rank = int(path.name.split(".")[1].removeprefix("rank"))
        ended = RunOutcome(**json.loads(path.read_text(encoding="utf-8")))
        if ended.code and ended.rank is None:
            ended = ended._replace(rank=rank)
        outcomes[rank] = ended
        path.unlink()
    return outcomes


def _cause(by_rank: dict[int, RunOutcome], silent: list[int], failure: str) -> RunOutcome:
    """Return the outcome that explains the others: that of the first rank with an error of its own,
    then of one that names another rank that hangs, then of one that left nothing, then any.
    """
    exchange = errors.DistributedError.exit_code
    outcomes = list(by_rank.values())
    own = [ended for ended in outcomes if ended.code not in (0, exchange)]
    own += [ended for rank, ended in by_rank.items() if ended.rank not in (None, rank)]
    if own:
        return own[0]
    if outcomes and not failure:
        return outcomes[0]
    if silent:
        fix = "was it killed? look at memory and the system's log"
        lost = errors.DistributedError(102, f"rank {silent[0]}", "ended without a word", fix)
        steps = [ended.step for ended in outcomes if ended.step is not None]
        return RunOutcome(exchange, str(lost), max(steps, default=None), silent[0])
    return next((ended for ended in outcomes if ended.code), RunOutcome(exchange, failure))


def run_rank(path: str, action: Callable[[RankedJob], RunOutcome]) -> NoReturn:
    """Run ``action`` in a rank that ``launch_ranks`` has started, and end the process."""
    job, result = _of_launcher(path)
    stopping.leave(_written(result, job.outcome(action)))


def _of_launcher(path: str) -> tuple[RankedJob, Path]:
    text = Path(path).read_text(encoding="utf-8")
    job = read_job(text)
    find_packages(job.allowed)
    launcher = json.loads(text)["launcher"]
    return job, Path(job.run_dir, f"exit.rank{os.environ['RANK']}.{launcher}.json")


def _written(result: Path, ended: RunOutcome) -> int:
    with durable.uninterrupted():
        durable.write_json(result, ended._asdict())
    end_useless()
    return ended.code


def train_rank(path: str) -> NoReturn:
    """Run a rank of training that ``launch_ranks`` has started, and end the process.

    The launcher restarts all ranks unless the exit code is 0. A rank that a signal has stopped
    therefore ends with 0, and only its file says so.
    """
    job, result = _of_launcher(path)
    config = job.config
    if result.exists():
        code = json.loads(result.read_text(encoding="utf-8"))["code"]
        if code in LASTING:
            stopping.leave(code)
    result.unlink(missing_ok=True)
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if os.environ["RANK"] == "0" and restarts != "0":
        count = f"{restarts} of {config['parallel']['max_restarts']}"
        with logged(Path(job.run_dir)):
            _note(f"a rank was lost; all start again ({count}), from the newest state")
    if not config["resume"]["run"]:  # a restarted rank continues from what was saved here before
        resume = {**config["resume"], "run": job.run_dir, "auto": True}
        job = job._replace(config={**config, "resume": resume})
    signals = StopSignals(of_rank=True)
    with logged(Path(job.run_dir)):
        ended = job.outcome(_train, signals)
        outcome.log_end(ended)
    code = _written(result, ended)
    if code not in (errors.EXIT_INTERRUPTED, errors.EXIT_PREEMPTED):
        stopping.leave(code)
    # stopped on another host: this host's launcher, which waits for nobody, has to know
    if not signals.stopped() and config["parallel"].get("num_nodes", 1) > 1:
        os.kill(os.getppid(), signal.SIGUSR1)
    stopping.leave(0)
