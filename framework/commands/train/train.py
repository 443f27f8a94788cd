"""``paceline train``: compose the configuration, claim the run directory, and train here or in
ranks.
"""

import os
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework.cli.allowed import Grant, granted
from framework.cli.arguments import option
from framework.cli.compose_config import checked
from framework.cli.hydra_app import run_app
from framework.cli.hydra_session import as_written, stamp
from framework.cli.outcome import conclude, discard_if_empty, told_if_stopped
from framework.cli.signals import end_again
from framework.commands.report.report import sweep_report
from framework.commands.train.resume_words import resumed, to_repeat
from framework.commands.train.sweep_table import SweepJob, print_sweep
from framework.config.targets import val_sets
from framework.errors import (
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    EXIT_TERMINATED,
    ConfigError,
    PacelineError,
    ResourceError,
    say,
)
from framework.parallel.processes import rank_environment
from framework.system.durable import locked, remove_leftovers, uninterrupted, write_text
from framework.system.run_dir import (
    ENDED,
    FACTS,
    NEXT_FACTS,
    RESOLVED,
    SUMMARY,
    check_entry,
    own_files,
    read_json,
    write_object,
)
from framework.system.stopping import undone

if TYPE_CHECKING:
    from framework.parallel.meeting import Meeting

Config = dict[str, Any]
# How long a requeued job waits for the job before it.
PATIENCE_S = 60.0
CLAIMED = (FACTS, "config.yaml", RESOLVED)
# Files of a run that failed before its first step. ``exit.json`` goes last: it says so.
LEFT_BY_FAILED = (*CLAIMED, "debug.log", ENDED)
LOCK = "run.lock"


class TypedTrain(NamedTuple):
    """What was typed or exported. A configuration file must not be able to set these.

    Attributes:
        grant: The packages whose classes may be called.
        config_dir: The folder of ``--config-dir``, absolute.
        jobs: The run, or the jobs of a sweep so far.
    """

    grant: Grant
    config_dir: str | None
    jobs: list[SweepJob]


class SweepStopped(BaseException):
    """A signal ended a job and with it the sweep.

    After an Exception Hydra would start the next job.
    """


def main(arguments: list[str]) -> int:
    """Run the command.

    Return the exit code of the run, or of the first job of a sweep that failed.
    """
    if option(arguments, "parallel.num_nodes") is None:
        # with it, each task of srun starts ranks of its own
        os.environ.update(rank_environment(os.environ))
    if "RANK" in os.environ and arguments[:1] != ["-sc"]:
        return _main_of_rank(arguments)
    words = resumed(arguments)
    typed = _typed(arguments, words)
    stopped = False
    before = _endings(arguments)
    try:
        code = run_app("train", words, partial(_job, typed), _search_value)
    except SweepStopped as stop:
        code = int(str(stop))
        stopped = True
    if not typed.jobs:
        typed.jobs.extend(_jobs_elsewhere(arguments, before))
    if len(typed.jobs) > 1:
        print_sweep(typed.jobs)
        started = [job.run_dir for job in typed.jobs if not job.refusal]
        if started and not stopped:
            sweep_report(started)
    return code


def _main_of_rank(arguments: list[str]) -> int:
    """Run one rank under torchrun.

    Rank 0 composes the configuration and shares it with the others.
    """
    if "-m" in arguments or "--multirun" in arguments:
        what = "a sweep inside an existing launch would be run by every rank"
        raise ConfigError(122, "-m", what, "start it without torchrun: parallel=ddp starts ranks")
    from framework.cli.run_ranks import run_shared  # noqa: PLC0415

    if int(os.environ["RANK"]) != 0:
        return run_shared(None)
    words = resumed(arguments)
    return run_app("train", words, partial(_job, _typed(arguments, words)))


def _typed(arguments: list[str], words: list[str]) -> TypedTrain:
    """Note what was typed.

    ``words`` also has those of a resumed run, whose --config-dir counts again.
    """
    config_dir = option(words, "--config-dir", "-cd")
    return TypedTrain(granted(arguments), config_dir and os.path.abspath(config_dir), [])


def _search_value(cfg: DictConfig) -> float | None:
    """Return what a search optimizes: a mean of the best validation.

    A search takes None for a failure.
    """
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    try:
        summary = read_json(run_dir / SUMMARY)
        return _of_first_set(summary["best"], cfg.search_metric)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _of_first_set(best: dict[str, float], metric: str) -> float | None:
    """Return a metric; without a validation set's name, it is the first set's."""
    names = [name for name in best if name == metric or name.endswith(f".{metric}")]
    return float(best[names[0]]) if names else None


def _endings(arguments: list[str]) -> dict[Path, int]:
    """Return when each job in the directory of the sweep has ended, in ns."""
    typed = option(arguments, "hydra.sweep.dir") or f"outputs/{stamp()}-sweep"
    paths = Path(typed.strip("'\"")).glob(f"*/{ENDED}")
    return {path: path.stat().st_mtime_ns for path in paths}


def _jobs_elsewhere(arguments: list[str], before: dict[Path, int]) -> list[SweepJob]:
    """Return the jobs of this sweep that a launcher ran in other processes, in order.

    ``before`` are the endings of older sweeps in the same directory.
    """
    endings = _endings(arguments).items()
    return sorted(SweepJob.read(path.parent) for path, ns in endings if before.get(path) != ns)


def _job(typed: TypedTrain, cfg: DictConfig) -> int:
    """Check the configuration, then make the run directory, then run."""
    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    # as typed: ${...} stays unresolved
    overrides = [str(word) for word in OmegaConf.to_container(hydra.overrides.task) or []]
    is_sweep = hydra.mode == RunMode.MULTIRUN
    number = int(hydra.job.num) if is_sweep else 0
    try:
        config, allowed = checked(cfg, typed.grant)
        if "RANK" in os.environ and "num_processes" not in config["parallel"]:
            world_size = os.environ.get("WORLD_SIZE")
            what = f"started as one of {world_size} ranks, each of which would train alone"
            fix = "add parallel=ddp, or start without torchrun"
            raise ConfigError(123, "parallel", what, fix)
        _check_search(config, hydra.runtime.choices)
        meeting = _meeting(config, is_sweep)
        if meeting is not None and not meeting.leads:
            from framework.cli.run_ranks import follow  # noqa: PLC0415

            discard_if_empty(run_dir)  # only the leader's directory counts
            return follow(meeting, allowed)
        with in_use(run_dir):
            claim(run_dir, cfg, config, to_repeat(overrides), typed.config_dir, is_sweep)
            typed.jobs.append(SweepJob(number, run_dir, overrides))
            code = _attempt(config, run_dir, allowed, is_sweep, meeting)
    except PacelineError as error:
        discard_if_empty(run_dir)
        print(error, file=sys.stderr)
        if not typed.jobs or typed.jobs[-1].run_dir != run_dir:  # it has not begun
            typed.jobs.append(SweepJob(number, run_dir, overrides, str(error)))
        return error.exit_code
    if is_sweep and code in (EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED):
        raise SweepStopped(code)
    if is_sweep:
        end_again()
    return code


def _check_search(config: Config, choices: Mapping[str, str | None]) -> None:
    """Raise ConfigError C335 for a search without validation data. ``choices`` are Hydra's."""
    has_validation = bool(val_sets(config["data"])) or config["folds"] is not None
    if choices.get("hydra/sweeper", "basic") != "basic" and not has_validation:
        metric = config["search_metric"]
        what = "looks at the validation, and there is none"
        fix = "give data.val, or sweep without hydra/sweeper"
        raise ConfigError(335, f"search_metric = {metric}", what, fix)


def _meeting(config: Config, is_sweep: bool) -> "Meeting | None":
    """Return how this host meets the others; None if it is alone, or if a launcher has started the
    ranks.
    """
    num_nodes = config["parallel"].get("num_nodes", 1)
    if num_nodes == 1 or "RANK" in os.environ:
        return None
    if is_sweep:
        what = "a sweep's jobs would have to meet one after the other"
        fix = "start the jobs one by one, or each as a job of a cluster"
        raise ConfigError(138, f"parallel.num_nodes = {num_nodes}", what, fix)
    # torch's sockets complain of hosts without a name; what fails, our own messages say
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from framework.parallel.meeting import Meeting, parse_endpoint  # noqa: PLC0415  # loads torch

    return Meeting(parse_endpoint(config["parallel"]["endpoint"]), num_nodes)


def _attempt(
    config: Config,
    run_dir: Path,
    allowed: tuple[str, ...],
    is_sweep: bool,
    meeting: "Meeting | None",
) -> int:
    with told_if_stopped(run_dir):
        # torch is loaded only for a configuration that is sound
        from framework.cli.run_ranks import RankedJob, run_here, run_shared  # noqa: PLC0415

        job = RankedJob(config, str(run_dir), allowed)
        if "RANK" in os.environ:
            return run_shared(job)
        outcome = job.outcome(run_here, meeting, is_sweep)
    with uninterrupted():
        return conclude(outcome, run_dir, short=is_sweep)


@contextmanager
def in_use(run_dir: Path) -> Generator[None]:
    """Let one process at a time train in ``run_dir``.

    ResourceError R108 names the other. CheckpointError K126 for a directory with links.
    """
    check_entry(run_dir)
    fix = "wait until it ends, or stop it"

    def tell(holder: str) -> None:
        what = f"{holder} is training there; waiting up to {PATIENCE_S:.0f} s for its end"
        say(f"note: {run_dir}: {what}", sys.stderr)

    lock = locked(
        run_dir / LOCK,
        lambda holder: ResourceError(108, str(run_dir), f"{holder} is training there", fix),
        patience_s=PATIENCE_S,
        waits=tell,
        needed=False,
    )
    with undone(lambda _: discard_if_empty(run_dir)), lock:
        own_files(run_dir)
        yield


def claim(
    run_dir: Path,
    cfg: DictConfig,
    config: dict[str, Any],
    overrides: list[str],
    config_dir: str | None,
    in_sweep: bool = False,
) -> None:
    """Make ``run_dir`` this run's, and write ``config.yaml``, ``resolved.json`` and ``run.json``.

    Args:
        run_dir: The directory.
        cfg: The configuration as composed.
        config: The configuration as plain values.
        overrides: The words that were typed.
        config_dir: The user's folder of configurations.
        in_sweep: Whether the run is a job of a sweep.

    Raises:
        ConfigError: C121 if the directory is another run's.
    """
    before = config["resume"]["run"]
    resumed = before is not None and Path(before).resolve() == run_dir.resolve()
    if not resumed and _failed_before_its_first_step(run_dir):
        # The same command is often typed again, with a path or a key corrected.
        _remove_all(run_dir, LEFT_BY_FAILED)
    try:
        (run_dir / FACTS).touch(exist_ok=resumed)
    except FileExistsError as error:
        where, what = f"hydra.run.dir = {run_dir}", "holds a run already"
        fix = (
            "choose another, remove it, or add resume=auto: "
            "it continues from a checkpoint if one exists, and starts from zero if not"
        )
        if in_sweep:
            where, fix = f"hydra.sweep.dir = {run_dir.parent}", "choose another, or remove the run"
            what += f", in {run_dir.name}"
        raise ConfigError(121, where, what, fix) from error

    def give_back(_: object) -> None:
        if not resumed:
            _remove_all(run_dir, CLAIMED)

    with undone(give_back):
        remove_leftovers(run_dir)
        suffix = ""
        if resumed:  # the files of the run's first start stay
            suffix = f".{len(list(run_dir.glob('config*.yaml')))}"
        write_text(run_dir / f"config{suffix}.yaml", OmegaConf.to_yaml(cfg))
        write_object(run_dir / f"resolved{suffix}.json", as_written(cfg), redact=False)
        from framework.run import facts  # noqa: PLC0415  # loads torch: only for a sound configuration

        # A resumed run's facts count once its state is loaded: an error before that changes
        # nothing.
        name = NEXT_FACTS if resumed else FACTS
        write_object(run_dir / name, {**facts(sys.argv, overrides), "config_dir": config_dir})


def _failed_before_its_first_step(run_dir: Path) -> bool:
    """Return whether a run in ``run_dir`` ended with an error and has left no result."""
    try:
        ending = read_json(run_dir / ENDED)
        failed = bool(ending["code"]) and ending["step"] is None and ending["checkpoint"] is None
        return failed and {path.name for path in run_dir.iterdir()} <= {*LEFT_BY_FAILED, LOCK}
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_all(run_dir: Path, names: Sequence[str]) -> None:
    for name in names:
        (run_dir / name).unlink(missing_ok=True)
