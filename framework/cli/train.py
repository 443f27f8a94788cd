"""``paceline train``: compose once, make the run directory, then train here, or start ranks that read what was composed."""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework import settings
from framework.cli.app import resolved, run_app
from framework.cli.arguments import option, quoted
from framework.cli.outcome import conclude, outcome_of
from framework.cli.rundir import claim, discard_if_empty
from framework.cli.signals import StopSignals
from framework.errors import CheckpointError, ConfigError, PacelineError
from framework.targets import as_prefixes, check_targets

ALLOW_VARIABLE = "PACELINE_ALLOW_TARGETS"
Config = dict[str, Any]


def main(arguments: list[str]) -> int:
    """The command. Returns the exit code: of the run, or of the first job of a sweep that failed."""
    if "RANK" in os.environ and arguments[:1] != ["-sc"]:
        return _main_of_rank(arguments)
    rows: list[Path] = []
    code = run_app("train", _resumed(arguments), partial(_job, rows))
    if len(rows) > 1:
        from framework.cli.table import print_sweep  # noqa: PLC0415

        print_sweep(rows)
    return code


def _main_of_rank(arguments: list[str]) -> int:
    """Under torchrun or srun: rank 0 composes and shares what it found; the others never see Hydra, so there is one run directory."""
    if "-m" in arguments or "--multirun" in arguments:
        raise ConfigError(
            122,
            "-m",
            "a sweep inside an existing launch would be run by every rank",
            "start it without torchrun: parallel=ddp starts ranks",
        )
    from framework.cli.rank import run_shared  # noqa: PLC0415

    if int(os.environ["RANK"]) == 0:
        return run_app("train", _resumed(arguments), partial(_job, []))
    return run_shared(None)


def _job(rows: list[Path], cfg: DictConfig) -> int:
    """One run: everything that can be wrong with the configuration first, then the run directory, then the run."""
    hydra = HydraConfig.get()
    run_dir = Path(hydra.runtime.output_dir)
    overrides = [str(word) for word in OmegaConf.to_container(hydra.overrides.task) or []]  # as typed: ${...} unresolved
    try:
        config = resolved(cfg)
        allowed = _allowed(config, overrides)
        settings.check(config)
        check_targets(config, allowed)
        _check_launch(config)
        claim(run_dir, cfg, config, [word for word in overrides if not word.startswith("resume=")])
    except PacelineError as error:
        discard_if_empty(run_dir)
        print(error, file=sys.stderr)
        return error.exit_code
    rows.append(run_dir)
    return _attempt(config, run_dir, allowed, is_sweep=hydra.mode == RunMode.MULTIRUN)


def _attempt(config: Config, run_dir: Path, allowed: tuple[str, ...], is_sweep: bool) -> int:
    from framework.cli.rank import run_here, run_shared  # noqa: PLC0415  # torch is loaded only for a configuration that is sound

    if "RANK" in os.environ:
        return run_shared({"config": config, "run_dir": str(run_dir), "allowed": allowed})
    with StopSignals() as signals:
        outcome = outcome_of(partial(run_here, config, run_dir, allowed, signals), run_dir, bool(config["debug"]))
    return conclude(outcome, run_dir, short=is_sweep)


def _check_launch(config: Config) -> None:
    if "RANK" in os.environ and "num_processes" not in config["parallel"]:
        what = f"started as one of {os.environ.get('WORLD_SIZE')} ranks, each of which would train alone"
        raise ConfigError(123, "parallel", what, "add parallel=ddp, or start without torchrun")


def _allowed(config: Config, overrides: list[str]) -> tuple[str, ...]:
    """The packages a ``_target_`` may name beyond ours: from the command line or the environment, never from a file. ConfigError C105."""
    said = any(word.lstrip("+").startswith("allow_targets=") for word in overrides)
    if config.get("allow_targets") and not said:
        what = "set by a configuration file, which must not allow itself anything"
        raise ConfigError(
            105, f"allow_targets = {config['allow_targets']}", what, f"give it on the command line, or by {ALLOW_VARIABLE}"
        )
    from_environment = os.environ.get(ALLOW_VARIABLE, "").split(",")
    allowed = as_prefixes([*map(str, config.get("allow_targets") or []), *from_environment])
    if allowed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the user's package is where the user stands
    return allowed


def _resumed(arguments: list[str]) -> list[str]:
    """With ``resume=RUN_DIR``: that run's own choices first, then what this command line changes, in the same directory."""
    resume = option(arguments, "resume")
    if resume is None or resume in ("null", ""):
        return arguments
    run_dir = Path(resume.strip("'\"")).absolute()
    try:
        before = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))["overrides"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            101, f"resume = {resume}", "not the directory of a run (no run.json)", "give the path a run printed"
        ) from error
    try:
        parser = OverridesParser.create()
        given = {parser.parse_override(word).get_key_element() for word in arguments if "=" in word and not word.startswith("-")}
        kept = [word for word in before if parser.parse_override(word).get_key_element() not in given]
    except OverrideParseException:
        return arguments  # Hydra will say what is wrong with them
    rest = [word for word in arguments if not word.startswith("resume=")]
    return [f"hydra.run.dir={quoted(str(run_dir))}", f"resume={quoted(str(run_dir))}", *kept, *rest]
