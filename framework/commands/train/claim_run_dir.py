"""The run directory: claimed once, then filled."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from framework.cli.environment import as_written
from framework.cli.outcome import discard_if_empty
from framework.errors import ConfigError, ResourceError, say
from framework.system.durable import remove_leftovers, write_text
from framework.system.lock import locked
from framework.system.run_dir import (
    ENDED,
    FACTS,
    NEXT_FACTS,
    RESOLVED,
    check_entry,
    own_files,
    read_json,
    write_object,
)
from framework.system.stopping import undone

# How long a requeued job waits for the job before it.
PATIENCE_S = 60.0
CLAIMED = (FACTS, "config.yaml", RESOLVED)
# Files of a run that failed before its first step. ``exit.json`` goes last: it says so.
LEFT_BY_FAILED = (*CLAIMED, "debug.log", ENDED)
LOCK = "run.lock"


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
        raise _taken(run_dir, in_sweep) from error

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


def _taken(run_dir: Path, in_sweep: bool) -> ConfigError:
    """Return the error for a directory that holds a run already."""
    if in_sweep:
        where = f"hydra.sweep.dir = {run_dir.parent}"
        what = f"holds a run already, in {run_dir.name}"
        return ConfigError(121, where, what, "choose another, or remove the run")
    fix = (
        "choose another, remove it, or add resume=auto: "
        "it continues from a checkpoint if one exists, and starts from zero if not"
    )
    return ConfigError(121, f"hydra.run.dir = {run_dir}", "holds a run already", fix)


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
