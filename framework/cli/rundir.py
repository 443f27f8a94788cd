"""The run directory: claimed once, then filled."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from framework.cli.environment import as_written
from framework.config.schema import FACTS, NEXT_FACTS
from framework.errors import ConfigError, ResourceError
from framework.system.durable import remove_leftovers, write_json, write_text
from framework.system.lock import locked
from framework.system.stopping import undone

PATIENCE_S = 60.0


@contextmanager
def in_use(run_dir: Path) -> Generator[None]:
    """One process at a time trains in ``run_dir``: ResourceError R108 names the other. A requeued job waits a minute for the one before it."""
    fix = "wait until it ends, or stop it"
    lock = locked(
        run_dir / "run.lock",
        lambda holder: ResourceError(108, str(run_dir), f"{holder} is training there", fix),
        patience_s=PATIENCE_S,
        needed=False,
    )
    with undone(lambda _: discard_if_empty(run_dir)), lock:
        yield


def claim(
    run_dir: Path,
    cfg: DictConfig,
    config: dict[str, Any],
    overrides: list[str],
    config_dir: str | None,
) -> None:
    """Make ``run_dir`` this run's, and write ``config.yaml``, ``resolved.json`` and ``run.json``. ConfigError C121 where it is another's."""
    before = config["resume"]["run"]
    resumed = before is not None and Path(before).resolve() == run_dir.resolve()
    try:
        os.close(
            os.open(
                run_dir / FACTS, os.O_CREAT | os.O_WRONLY | (0 if resumed else os.O_EXCL), 0o666
            )
        )
    except FileExistsError as error:
        raise ConfigError(
            121,
            f"hydra.run.dir = {run_dir}",
            "holds a run already",
            "choose another, remove it, or add resume=auto: it goes on where a checkpoint was saved, and begins anew where none was",
        ) from error
    with undone(lambda _: None if resumed else _give_back(run_dir)):
        _fill(run_dir, cfg, config, overrides, config_dir, resumed)


def _give_back(run_dir: Path) -> None:
    """Remove what ``claim`` has written so far."""
    for name in (FACTS, "config.yaml", "resolved.json"):
        (run_dir / name).unlink(missing_ok=True)


def _fill(
    run_dir: Path,
    cfg: DictConfig,
    config: dict[str, Any],
    overrides: list[str],
    config_dir: str | None,
    resumed: bool,
) -> None:
    remove_leftovers(run_dir)
    suffix = (
        f".{len(list(run_dir.glob('config*.yaml')))}" if resumed else ""
    )  # what it was started with stays
    write_text(run_dir / f"config{suffix}.yaml", OmegaConf.to_yaml(cfg))
    write_json(run_dir / f"resolved{suffix}.json", as_written(cfg))
    from framework.run import facts  # noqa: PLC0415  # loads torch: only now that the configuration is sound

    # a resumed run's facts count once its state has been taken up: what fails before that must change nothing
    write_json(
        run_dir / (NEXT_FACTS if resumed else FACTS),
        {**facts(sys.argv, overrides), "config_dir": config_dir},
    )


def discard_if_empty(run_dir: Path) -> None:
    """Remove the directory Hydra made for a run that never was, and the empty ones above it that it made too."""
    with suppress(OSError):
        run_dir.rmdir()
        for folder in list(run_dir.parents)[:2]:
            if "outputs" in folder.parts[:-1]:  # never a folder that may be the user's own
                folder.rmdir()
