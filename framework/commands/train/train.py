"""``paceline train``: compose once, make the run directory, then train here, or start ranks that read what was composed."""

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework.cli.allowed import Grant, allowed_targets, granted
from framework.cli.arguments import check_words, option, quoted
from framework.cli.end_table import print_sweep
from framework.cli.hydra_app import resolved, run_app
from framework.cli.hydra_session import stamp
from framework.cli.outcome import conclude, outcome_of, told_if_stopped
from framework.cli.precedence import check_data_named, with_recipe_said
from framework.cli.rundir import claim, discard_if_empty, in_use
from framework.cli.signals import end_again
from framework.commands.report.report import sweep_report
from framework.config import schema as settings
from framework.config.targets import check_targets
from framework.errors import (
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    EXIT_TERMINATED,
    CheckpointError,
    ConfigError,
    PacelineError,
)
from framework.parallel.launch.srun import rank_environment
from framework.system.durable import uninterrupted

if TYPE_CHECKING:
    from framework.parallel.launch.hosts import Meeting

Config = dict[str, Any]


class TypedTrain(NamedTuple):
    """What was typed or exported, noted before Hydra runs: a configuration file must not be able to say these things."""

    grant: Grant
    config_dir: str | None
    run_dirs: list[Path]  # of the jobs, as they begin


class SweepStopped(BaseException):
    """A signal ended a job, and with it the sweep; not an Exception, after which Hydra would go on with the next job."""


def main(arguments: list[str]) -> int:
    """The command. Returns the exit code: of the run, or of the first job of a sweep that failed."""
    if (
        option(arguments, "parallel.num_nodes") is None
    ):  # else each task of srun starts ranks of its own
        os.environ.update(rank_environment(os.environ))
    if "RANK" in os.environ and arguments[:1] != ["-sc"]:
        return _main_of_rank(arguments)
    words = _resumed(arguments)
    typed, stopped = _typed(arguments, words), False
    try:
        code = run_app("train", words, partial(_job, typed), _result)
    except SweepStopped as stop:
        code, stopped = int(str(stop)), True
    if not typed.run_dirs and {"-m", "--multirun"} & set(arguments):
        typed.run_dirs.extend(_jobs_elsewhere(arguments))
    if len(typed.run_dirs) > 1:
        print_sweep(typed.run_dirs)
        if not stopped:
            sweep_report(typed.run_dirs)
    return code


def _result(cfg: DictConfig) -> float | None:
    """What a search optimizes: a mean of the best validation. None where there is none, which a search takes for a failure."""
    try:
        summary = json.loads(
            Path(HydraConfig.get().runtime.output_dir, "summary.json").read_text(encoding="utf-8")
        )
        return float(summary["best"][cfg.search_metric])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _jobs_elsewhere(arguments: list[str]) -> list[Path]:
    """The run directories of a sweep whose jobs a launcher ran in other processes."""
    sweep_dir = option(arguments, "hydra.sweep.dir")
    folders = Path(sweep_dir.strip("'\"") if sweep_dir else f"outputs/{stamp()}-sweep").glob(
        "*/exit.json"
    )
    return sorted(
        (path.parent for path in folders),
        key=lambda path: int(re.findall(r"^\d*", path.name)[0] or 0),
    )


def _typed(arguments: list[str], words: list[str]) -> TypedTrain:
    """``words``: the arguments with those of the run that is resumed, whose folder of configurations counts again."""
    config_dir = option(words, "--config-dir", "-cd")
    return TypedTrain(granted(arguments), config_dir and os.path.abspath(config_dir), [])


def _main_of_rank(arguments: list[str]) -> int:
    """Under torchrun: rank 0 composes and shares what it found; the others never see Hydra, so there is one run directory."""
    if "-m" in arguments or "--multirun" in arguments:
        what = "a sweep inside an existing launch would be run by every rank"
        raise ConfigError(122, "-m", what, "start it without torchrun: parallel=ddp starts ranks")
    from framework.commands.train.run_ranks import run_shared  # noqa: PLC0415

    if int(os.environ["RANK"]) == 0:
        words = _resumed(arguments)
        return run_app("train", words, partial(_job, _typed(arguments, words)))
    return run_shared(None)


def _job(typed: TypedTrain, cfg: DictConfig) -> int:
    """One run: everything that can be wrong with the configuration first, then the run directory, then the run."""
    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    overrides = [
        str(word) for word in OmegaConf.to_container(hydra.overrides.task) or []
    ]  # as typed: ${...} unresolved
    try:
        config = resolved(cfg)
        allowed = allowed_targets(config, typed.grant)
        settings.check(config)
        check_targets(config, allowed)
        check_data_named(cfg)
        _check_launch(config)
        is_sweep = hydra.mode == RunMode.MULTIRUN
        meeting = _meeting(config, is_sweep)
        if meeting is not None and not meeting.leads:
            return _follow(meeting, allowed, run_dir)
        with in_use(run_dir):
            claim(run_dir, cfg, config, _to_repeat(overrides), typed.config_dir)
            typed.run_dirs.append(run_dir)
            code = _attempt(config, run_dir, allowed, is_sweep, meeting)
    except PacelineError as error:
        discard_if_empty(run_dir)
        print(error, file=sys.stderr)
        return error.exit_code
    if is_sweep and code in (EXIT_INTERRUPTED, EXIT_PREEMPTED, EXIT_TERMINATED):
        raise SweepStopped(code)
    if is_sweep:
        end_again()
    return code


def _to_repeat(overrides: list[str]) -> list[str]:
    """What a resumed run takes over; what it may call must be allowed anew."""
    return [
        word for word in overrides if not word.lstrip("+").startswith(("resume", "allow_targets="))
    ]


def _replaced(key: str, given: set[str]) -> bool:
    """Whether a word of the run before is void: said anew, or about a choice that is another one now."""
    key = key.lstrip("+~")
    return key in given or key.split(".", maxsplit=1)[0] in given & set(settings.GROUPS)


def _is_override(word: str) -> bool:
    return word.startswith("~") or ("=" in word and not word.startswith("-"))


def _resumed_if_there(arguments: list[str]) -> list[str]:
    """ConfigError C127 where it is not said where."""
    run_dir = option(arguments, "hydra.run.dir")
    if run_dir is None:
        raise ConfigError(
            127,
            "resume = auto",
            "nobody says where",
            "add hydra.run.dir=RUN_DIR, the same each time",
        )
    rest = [word for word in arguments if not word.startswith(("resume=", "resume.run="))]
    facts = Path(run_dir.strip("'\"")) / "run.json"
    if not facts.exists() or not facts.stat().st_size:  # nothing, or killed before it had begun
        return [
            *rest,
            *(
                ["resume.auto=true", f"resume.run={quoted(str(facts.parent.absolute()))}"]
                if facts.exists()
                else []
            ),
        ]
    rest = [word for word in rest if not word.startswith("hydra.run.dir=")]
    return _resumed([f"resume={run_dir}", *rest, "resume.auto=true"])


def _repeated(words: Any) -> list[str]:
    """A run's overrides as ``run.json`` has them, which somebody may have sent. ConfigError C125 for what only a command line says."""
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise TypeError("not words")
    check_words(words)
    for word in words:
        if word.lstrip("+~").startswith(("hydra.", "hydra/", "-")) or not (
            "=" in word or word.startswith("~")
        ):
            what = "in a run.json, which repeats what was chosen for a run, not how it is started"
            raise ConfigError(125, word[:100], what, "remove it from there")
    return words


def _meeting(config: Config, is_sweep: bool) -> "Meeting | None":
    """This host among others; None where it is alone, or where a launcher has started ranks already."""
    num_nodes = config["parallel"].get("num_nodes", 1)
    if num_nodes == 1 or "RANK" in os.environ:
        return None
    if is_sweep:
        what = "a sweep's jobs would have to meet one after the other"
        raise ConfigError(
            138,
            f"parallel.num_nodes = {num_nodes}",
            what,
            "start the jobs one by one, or each as a job of a cluster",
        )
    os.environ.setdefault(
        "TORCH_CPP_LOG_LEVEL", "FATAL"
    )  # its sockets complain of hosts without a name; what fails we say
    from framework.parallel.launch.hosts import Meeting, parse_endpoint  # noqa: PLC0415  # loads torch

    return Meeting(parse_endpoint(config["parallel"]["endpoint"]), num_nodes)


def _follow(meeting: "Meeting", allowed: tuple[str, ...], run_dir: Path) -> int:
    from framework.commands.train.run_ranks import follow  # noqa: PLC0415

    discard_if_empty(run_dir)  # the leader's counts
    return follow(meeting, allowed)


def _attempt(
    config: Config,
    run_dir: Path,
    allowed: tuple[str, ...],
    is_sweep: bool,
    meeting: "Meeting | None",
) -> int:
    with told_if_stopped(run_dir):
        from framework.commands.train.run_ranks import run_here, run_shared  # noqa: PLC0415  # torch is loaded only for a configuration that is sound

        if "RANK" in os.environ:
            return run_shared({"config": config, "run_dir": str(run_dir), "allowed": allowed})
        action = partial(run_here, config, run_dir, allowed, meeting, is_sweep)
        outcome = outcome_of(action, run_dir, bool(config["debug"]), allowed)
    with uninterrupted():
        return conclude(outcome, run_dir, short=is_sweep)


def _check_launch(config: Config) -> None:
    if "RANK" in os.environ and "num_processes" not in config["parallel"]:
        what = f"started as one of {os.environ.get('WORLD_SIZE')} ranks, each of which would train alone"
        raise ConfigError(123, "parallel", what, "add parallel=ddp, or start without torchrun")


def _resumed(arguments: list[str]) -> list[str]:
    """With ``resume=RUN_DIR``: that run's own choices first, then what this command line changes, in the same directory. With ``resume=auto``
    the same, where hydra.run.dir holds a run, and else as if it were not there: one command for every start of a job that may be killed.
    """
    resume = option(arguments, "resume") or option(arguments, "resume.run")
    if resume is None or resume in ("null", ""):
        return [word for word in arguments if word != "resume=null"]
    if resume == "auto":
        return _resumed_if_there(arguments)
    run_dir = Path(resume.strip("'\"")).absolute()
    try:
        facts = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
        before, known = _repeated(facts["overrides"]), facts.get("config_dir")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        what = f"not the directory of a run ({'no' if isinstance(error, FileNotFoundError) else 'not its'} run.json)"
        raise CheckpointError(
            101, f"resume = {resume}", what, "give the path a run printed"
        ) from error
    if not isinstance(known, str | None) or (known is not None and known.startswith("-")):
        raise CheckpointError(
            101,
            f"resume = {resume}",
            "its run.json names no folder as config_dir",
            "mend or remove it",
        )
    rest = [word for word in arguments if not word.startswith(("resume=", "resume.run="))]
    try:
        parser = OverridesParser.create()
        given = {
            parser.parse_override(word).get_key_element().lstrip("+~")
            for word in rest
            if _is_override(word)
        }
        before = with_recipe_said(before, rest)
        kept = [
            word
            for word in before
            if not _replaced(parser.parse_override(word).get_key_element(), given)
        ]
    except HydraException:
        return arguments  # Hydra will say what is wrong with them
    flags = (
        ["--config-dir", known]
        if known and option(arguments, "--config-dir", "-cd") is None
        else []
    )
    return [
        *flags,
        f"hydra.run.dir={quoted(str(run_dir))}",
        f"resume.run={quoted(str(run_dir))}",
        *kept,
        *rest,
    ]
