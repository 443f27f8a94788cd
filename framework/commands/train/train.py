"""``paceline train``: compose the configuration, claim the run directory, and train."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework import errors
from framework.cli import hydra_session, precedence, signals, tables
from framework.cli.arguments import Grant, config_flags, granted, typed_value
from framework.cli.devices_launcher import DevicesLauncher, LaunchedJob, SweepStopped, asked_job
from framework.cli.hydra_app import checked, run_app
from framework.cli.outcome import conclude, discard_if_empty, recorded_if_stopped
from framework.cli.run_records import LOCK
from framework.cli.trusted_folders import signature, was_begun_here
from framework.commands.train.resume_words import resumed
from framework.config.targets import val_sets
from framework.contracts.span import IDLE
from framework.errors import ConfigError, PacelineError, ResourceError, say
from framework.measure import statistics
from framework.parallel.processes import rank_environment
from framework.system import run_dir as run_files
from framework.system.durable import locked, remove_leftovers, uninterrupted, write_text
from framework.system.imports import load
from framework.system.run_dir import ENDED, FACTS, REPORTS, SUMMARY
from framework.system.run_log import OWN, logged
from framework.system.safe_text import SafeConsole
from framework.system.stopping import undone

Config = dict[str, Any]
PATIENCE_S = 60.0  # how long a requeued job waits for the job before it
CLAIMED = (FACTS, "config.yaml", run_files.RESOLVED)
# Files of a run that failed before its first step. ``exit.json``, which says so, is removed last.
LEFT_BY_FAILED = (*CLAIMED, run_files.LOG, "debug.log", ENDED)
BEGUN = "tensorboard"  # has a file before the first step
STOPPED = (errors.EXIT_INTERRUPTED, errors.EXIT_PREEMPTED, errors.EXIT_TERMINATED)


class SweepJob(NamedTuple):
    number: int  # Hydra's, with which the name of its directory begins
    run_dir: Path
    words: Sequence[str]  # its overrides
    refusal: str = ""  # why it could not start; empty if it did

    @classmethod
    def read(cls, run_dir: Path) -> "SweepJob":
        """Return a job that another process has run."""
        number = re.match(r"\d*", run_dir.name)
        words = run_files.read_object(run_dir / FACTS).get("overrides", [])
        return cls(int(number[0]) if number and number[0] else 0, run_dir, words)

    @classmethod
    def launched(cls, job: LaunchedJob) -> "SweepJob":
        """Return a job that has run beside others, or was refused."""
        run_dir = Path(job.answer.get("folder", job.answer["log"]))
        refusal = "" if (run_dir / FACTS).exists() else job.reason
        return cls(job.number, run_dir, job.words, refusal)


class TypedTrain(NamedTuple):
    """What was typed or exported. A configuration file must not be able to set these."""

    grant: Grant  # the packages whose classes may be called
    config_dir: str | None  # the folder of ``--config-dir``, absolute
    jobs: list[SweepJob]  # the run, or the jobs of a sweep so far
    started_ns: int  # by the clock of files


def main(arguments: list[str]) -> int:
    """Run the command. Return the exit code of the run, or of a sweep's first job that failed."""
    if typed_value(arguments, "parallel.num_nodes") is None:
        # with it, each task of srun starts ranks of its own
        os.environ.update(rank_environment(os.environ))
    is_rank = "RANK" in os.environ and arguments[:1] != ["-sc"]
    if is_rank and {"-m", "--multirun"} & set(arguments):
        what = "a sweep inside an existing launch would be run by every rank"
        raise ConfigError(122, "-m", what, "start it without torchrun: parallel=ddp starts ranks")
    if is_rank and int(os.environ["RANK"]) != 0:  # rank 0 shares its configuration
        from framework.cli.run_ranks import run_shared  # noqa: PLC0415

        return run_shared(None)
    words = resumed(arguments)
    config_dir = typed_value(words, "--config-dir", "-cd")
    place = config_dir and os.path.abspath(config_dir)
    typed = TypedTrain(granted([*arguments, *config_flags(config_dir)]), place, [], time.time_ns())
    job = partial(_job, typed)
    if is_rank:
        return run_app("train", words, job)
    before = _endings(arguments)
    code = run_app("train", words, job, _search_value, arguments)
    if asked_job() is not None:  # the sweep prints what follows
        return code
    typed.jobs.extend(map(SweepJob.launched, DevicesLauncher.ended))
    if not typed.jobs:
        typed.jobs.extend(_jobs_elsewhere(arguments, before))
    if len(typed.jobs) > 1:
        print_sweep(typed.jobs)
        started = [job.run_dir for job in typed.jobs if not job.refusal]
        if started and code not in STOPPED:  # the sweep does not fail if its page does
            page = Path(os.path.commonpath([run_dir.parent for run_dir in started]), "report.html")
            report = [sys.executable, "-m", "framework", "report", *map(str, started)]
            subprocess.run([*report, f"page={page}"], check=False)  # noqa: S603
    return code


def _search_value(cfg: DictConfig) -> float | None:
    """Return what a search optimizes: a metric of the best validation; None after a failure."""
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    best = run_files.read_object(run_dir / SUMMARY).get("best") or {}
    metric = cfg.search_metric  # without the name of a validation set it is the first set's
    names = [name for name in best if name == metric or name.endswith(f".{metric}")]
    return float(best[names[0]]) if names else None


def _endings(arguments: list[str]) -> dict[Path, int]:
    typed = typed_value(arguments, "hydra.sweep.dir") or f"outputs/{hydra_session.stamp()}-sweep"
    paths = Path(typed.strip("'\"")).glob(f"*/{ENDED}")
    return {path: path.stat().st_mtime_ns for path in paths}


def _jobs_elsewhere(arguments: list[str], before: dict[Path, int]) -> list[SweepJob]:
    """Return the jobs that a launcher ran in other processes. ``before`` are older endings."""
    endings = _endings(arguments).items()
    return sorted(SweepJob.read(path.parent) for path, ns in endings if before.get(path) != ns)


def _job(typed: TypedTrain, cfg: DictConfig) -> int:
    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    # as typed: ${...} stays unresolved
    overrides = [str(word) for word in OmegaConf.to_container(hydra.overrides.task) or []]
    is_sweep = hydra.mode == RunMode.MULTIRUN
    number = int(hydra.job.num) if is_sweep else 0
    # whether Hydra has made it for this job
    is_new = run_dir.stat().st_ctime_ns >= typed.started_ns and not any(run_dir.iterdir())
    try:
        config, allowed = checked(cfg, typed.grant)
        _check_start(config, hydra.runtime.choices.get("hydra/sweeper", "basic"), is_sweep)
        meeting = None
        num_nodes = config["parallel"].get("num_nodes", 1)
        if num_nodes != 1 and "RANK" not in os.environ:
            # torch's sockets complain of hosts without a name. Our own messages say what fails.
            os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
            from framework.cli.run_ranks import follow  # noqa: PLC0415
            from framework.parallel.start_ranks import Meeting, parse_endpoint  # noqa: PLC0415

            meeting = Meeting(parse_endpoint(config["parallel"]["endpoint"]), num_nodes)
            if not meeting.leads:
                discard_if_empty(run_dir)  # only the leader's directory counts
                return follow(meeting, allowed)
        with in_use(run_dir):
            others = ("resume", "allow_targets=")  # every start has to allow its own packages
            repeated = [word for word in overrides if not word.lstrip("+").startswith(others)]
            claim(run_dir, cfg, repeated, typed.config_dir, is_sweep)
            typed.jobs.append(SweepJob(number, run_dir, overrides))
            with logged(run_dir):
                for note in precedence.last().notes:
                    OWN.info("note: %s", note)
                code = _run(config, run_dir, allowed, meeting, is_sweep)
            # the report of a sweep names the jobs that failed
            if is_new and not is_sweep and _has_failed_at_start(run_dir):
                with uninterrupted():
                    _remove_all(run_dir, (*LEFT_BY_FAILED, REPORTS))
                    shutil.rmtree(run_dir / BEGUN, ignore_errors=True)
        if is_new:
            discard_if_empty(run_dir)
    except PacelineError as error:
        if is_new:
            discard_if_empty(run_dir)
        print(error, file=sys.stderr)
        if not typed.jobs or typed.jobs[-1].run_dir != run_dir:  # it has not begun
            typed.jobs.append(SweepJob(number, run_dir, overrides, str(error)))
        return error.exit_code
    if is_sweep and code in STOPPED:
        raise SweepStopped(code)
    if is_sweep:
        signals.StopSignals.end_again()
    return code


def _run(
    config: Config, run_dir: Path, allowed: tuple[str, ...], meeting: Any, is_sweep: bool
) -> int:
    """Train in this process, or as the ranks of a host or of several. Return the exit code."""
    with recorded_if_stopped(run_dir):
        # torch is loaded only for a configuration that is sound
        from framework.cli.run_ranks import RankedJob, run_here, run_shared  # noqa: PLC0415

        job = RankedJob(config, str(run_dir), allowed)
        if "RANK" in os.environ:
            return run_shared(job)
        outcome = job.outcome(run_here, meeting, is_sweep)
    with uninterrupted():
        return conclude(outcome, run_dir, short=is_sweep)


def _has_failed_at_start(run_dir: Path) -> bool:
    """Return whether a run failed before its first step and left nothing of value."""
    ending = run_files.read_object(run_dir / ENDED)
    has_result = bool(ending.get("step") or ending.get("checkpoint"))
    if not ending.get("code") or ending["code"] in STOPPED or has_result:
        return False
    left = {path.name for path in run_dir.iterdir() if path.name != REPORTS or path.stat().st_size}
    return left <= {*LEFT_BY_FAILED, LOCK, BEGUN} - {"debug.log"}  # to which a line points


def _check_start(config: Config, sweeper: str | None, is_sweep: bool) -> None:
    """Check how the run is started. ConfigError C123, C138 or C335."""
    if "RANK" in os.environ and "num_processes" not in config["parallel"]:
        world_size = os.environ.get("WORLD_SIZE")
        what = f"started as one of {world_size} ranks, each of which would train alone"
        fix = "add parallel=ddp, or start without torchrun"
        raise ConfigError(123, "parallel", what, fix)
    num_nodes = config["parallel"].get("num_nodes", 1)
    if is_sweep and num_nodes > 1 and "RANK" not in os.environ:
        what = "a sweep's jobs would have to meet one after the other"
        fix = "start the jobs one by one, or each as a job of a cluster"
        raise ConfigError(138, f"parallel.num_nodes = {num_nodes}", what, fix)
    if sweeper != "basic" and not val_sets(config["data"]) and config["folds"] is None:
        what = "looks at the validation, and there is none"
        fix = "give data.val, or sweep without hydra/sweeper"
        raise ConfigError(335, f"search_metric = {config['search_metric']}", what, fix)


@contextmanager
def in_use(run_dir: Path) -> Generator[None]:
    """Let one process at a time train in ``run_dir``.

    ResourceError R108 names the other. CheckpointError K126 for a directory with links.
    """
    run_files.check_entry(run_dir)
    fix = "wait until it ends, or stop it"

    def busy(holder: str) -> ResourceError:
        return ResourceError(108, str(run_dir), f"{holder} is training there", fix)

    def waits(holder: str) -> None:
        what = f"{holder} is training there; waiting up to {PATIENCE_S:.0f} s for its end"
        say(f"note: {run_dir}: {what}", sys.stderr)

    lock = locked(run_dir / LOCK, busy, patience_s=PATIENCE_S, waits=waits, needed=False)
    with undone(lambda _: discard_if_empty(run_dir)), lock:
        run_files.own_files(run_dir)
        yield


def claim(
    run_dir: Path, cfg: DictConfig, overrides: list[str], config_dir: str | None, in_sweep: bool
) -> None:
    """Make ``run_dir`` this run's, and write ``config.yaml``, ``resolved.json`` and ``run.json``.

    ``cfg`` is the configuration as composed, ``overrides`` the words that were typed. ConfigError
    C121 if the directory is another run's.
    """
    before = cfg.resume.run
    resumed = before is not None and Path(before).resolve() == run_dir.resolve()
    ending = run_files.read_object(run_dir / ENDED)
    has_result = ending.get("step") is not None or bool(ending.get("checkpoint"))
    if not resumed and ending.get("code") and not has_result:
        # The same command is often typed again, with a path or a key corrected.
        left = {path.name for path in run_dir.iterdir()}
        if left <= {*LEFT_BY_FAILED, LOCK, run_files.JOB_LOG}:
            _remove_all(run_dir, LEFT_BY_FAILED)
    try:
        own = (*CLAIMED, REPORTS, SUMMARY)
        if not resumed and any((run_dir / name).exists() for name in own):
            raise FileExistsError  # also for files of another program
        (run_dir / FACTS).touch(exist_ok=resumed)
    except FileExistsError as error:
        where, what = f"hydra.run.dir = {run_dir}", "holds a run already"
        fix = "choose another, remove it, or add resume=auto: it continues from a checkpoint "
        fix += "if one exists, and starts from zero if not"
        if in_sweep:
            where, fix = f"hydra.sweep.dir = {run_dir.parent}", "choose another, or remove the run"
            what += f", in {run_dir.name}"
        raise ConfigError(121, where, what, fix) from error
    with undone(lambda _: _remove_all(run_dir, () if resumed else CLAIMED)):
        remove_leftovers(run_dir)
        suffix, facts_file = "", FACTS
        if resumed:
            # The files of the first start stay, and new facts count once the state is loaded.
            suffix = f".{len(list(run_dir.glob('config*.yaml')))}"
            facts_file = run_files.NEXT_FACTS
        write_text(run_dir / f"config{suffix}.yaml", OmegaConf.to_yaml(cfg))
        written = hydra_session.as_written(cfg)
        run_files.write_object(run_dir / f"resolved{suffix}.json", written, redact=False)
        own = {key: written[key] for key in ("vars", "tags")}
        own["trust"] = signature(run_dir) if not resumed or was_begun_here(run_dir) else ""
        facts = load("framework.run").facts  # and torch: only for a sound configuration
        known = {**facts(sys.argv, overrides), "config_dir": config_dir, **own}
        run_files.write_object(run_dir / facts_file, known)


def _remove_all(run_dir: Path, names: Sequence[str]) -> None:
    for name in names:
        (run_dir / name).unlink(missing_ok=True)


def print_sweep(jobs: Sequence[SweepJob]) -> None:
    """Print a line per job: the choices in which the jobs differ, and how it went.

    The fastest choice and its test follow, or why no difference can be claimed. Jobs that differ
    only in their seed are repeats of one choice.
    """
    chosen: list[dict[str, str]] = []
    for job in jobs:
        typed = [word if "=" in word else f"{word.removeprefix('~')}=null" for word in job.words]
        chosen.append(dict(word.split("=", 1) for word in typed))
    every = dict.fromkeys(key for job in chosen for key in job)
    keys = [key for key in every if len({job.get(key) for job in chosen}) > 1]
    rows: list[list[str]] = []
    samples: dict[str, list[tuple[float, float, float]]] = {}
    for job, words in zip(jobs, chosen, strict=True):
        summary = {} if job.refusal else run_files.read_object(job.run_dir / SUMMARY)
        choices = [words.get(key, "") for key in keys]
        figures = ["", "", "", job.refusal]  # rate, other programs, waiting, validation
        usage = summary.get("usage", {})
        if not job.refusal and not summary:
            figures[3] = str(run_files.read_object(job.run_dir / ENDED).get("reason", "failed"))
        elif summary:
            figures[0] = f"{summary['records_per_s']:,.0f}"
            figures[3] = tables.metrics_words(summary)
            if "others_cpu_cores" in usage:
                figures[1] = f"{usage['others_cpu_cores']:.1f} cores"
            spans = summary.get("spans") or {}
            if waiting := spans.get(IDLE) or spans.get("wait"):
                figures[2] = f"{100 * waiting['share']:.0f} %"
        rows.append([str(job.number), *choices, *figures])
        if summary.get("status") == "finished":
            name = " ".join(f"{k}={words[k]}" for k in keys if k in words and k != "seed")
            load = usage.get("others_cpu_cores", 0.0)
            samples.setdefault(name, []).append((summary["records_per_s"], load, job.number))
    right = ("records/s", "other programs", "waiting")
    tables.print_table("sweep", ["job", *keys], right, rows, ["validation"])
    console = SafeConsole()
    if len(samples) > 1:
        jobs_of = samples.values()
        rates, loads, places = ([[own[n] for own in each] for each in jobs_of] for n in range(3))
        result = statistics.claim(rates, loads, places)
        name = list(samples)[result.highest]
        text = f"{statistics.NO_CLAIM} ({result.words}); the highest rate has {name}"
        if result.proved:
            text = f"fastest: {name} ({result.words})"
        console.print(text, soft_wrap=True)
    if jobs[0].run_dir.parent.exists():  # not if no job has begun
        console.print(f"sweep directory: {jobs[0].run_dir.parent}", soft_wrap=True)
