"""``paceline pack``: images or arrays into one store."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from framework.cli.app import resolved, run_app
from framework.cli.outcome import Outcome, outcome_of
from framework.cli.rundir import discard_if_empty
from framework.errors import ConfigError
from framework.targets import check_targets


def main(arguments: list[str]) -> int:
    """The command. Returns the exit code."""
    return run_app("pack", arguments, _job)


def _job(cfg: DictConfig) -> int:
    run_dir = Path(HydraConfig.get().runtime.output_dir)
    outcome = outcome_of(partial(_pack, cfg), run_dir, show_traceback=False)
    discard_if_empty(run_dir)
    if outcome.code:
        print(outcome.reason, file=sys.stderr)
    return outcome.code


def _pack(cfg: DictConfig) -> Outcome:
    config: dict[str, Any] = resolved(cfg)
    check_targets(config, ())
    workers = config["workers"]
    if workers is not None and (not isinstance(workers, int) or isinstance(workers, bool) or workers < 0):
        raise ConfigError(
            101, f"workers = {workers}", "not a value it can have", "give int, at least 0, or null for one per core"
        )
    from framework.assemble import build  # noqa: PLC0415  # loads torch: only for a configuration that is sound
    from framework.cli.progress import pack_with_progress  # noqa: PLC0415

    source = build("input", config["input"], ())
    pack_with_progress(source, partial(build, "output", config["output"], ()), config["output"]["path"], workers)
    return Outcome(0, "finished")
