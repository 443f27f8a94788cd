"""One training run in this process (one rank's, under ddp): assemble, fit, and leave the files that the run is known by."""

import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from framework.config.assemble import Assembly
from framework.config.schema import AFTER_STEP, FACTS, NEXT_FACTS, PROFILE
from framework.contracts.span import Span, shares
from framework.errors import ConfigError
from framework.measure.host import machine, peak_rss_bytes, threads_per_rank
from framework.measure.profile import LEAST_STEPS, TRACED
from framework.measure.usage import Usage
from framework.sink.measured import MeasuredSink
from framework.system.durable import write_json
from framework.train.checkpoint import RecoveredState, newest_path, newest_state
from framework.train.trainer import Trainer

Config = dict[str, Any]


def run(
    config: Config,
    run_dir: Path,
    allowed: tuple[str, ...],
    stop: Callable[[], bool],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train as ``config`` (plain values, resolved) says; returns what ``summary.json`` holds. Only rank 0 writes and says."""
    torch.set_num_threads(threads_per_rank())
    start = time.perf_counter()
    found = _found(config["resume"])
    assembly = Assembly(
        config, allowed, run_dir / PROFILE if config["debug"] == "profile" else None
    )
    trainer: Trainer | None = None
    try:
        leads = assembly.parallel.rank == 0
        trainer = assembly.trainer(run_dir, found and found.state, stop, say)
        notes = [
            *assembly.notes,
            *(note for part in (assembly.parallel, assembly.train) for note in part.notes),
        ]
        if found is not None and leads:
            notes = [*_of_damage(found), *notes]
        if (
            trainer.progress.step >= trainer.total_steps
            and (summary := _finished(run_dir)) is not None
        ):
            return _not_continued(summary, run_dir, assembly, trainer, say if leads else _ignored)
        if assembly.profiled is not None:
            _check_steps(trainer.total_steps - trainer.progress.step)
        if leads:
            _add_facts(run_dir, assembly)
            for note in notes:
                say(f"note: {note}")
        start_step = trainer.progress.step
        measured = MeasuredSink(
            trainer.sinks, assembly.train.stats, Usage(assembly.device).lap, say, start_step
        )
        trainer.sinks = [measured] if leads else []
        try:
            trainer.fit()
        except Exception as error:
            error.add_note(
                f"{AFTER_STEP}{trainer.progress.step}"
            )  # for exit.json, and for whoever reads the traceback
            raise
        summary = {
            **_summary(config, trainer, notes, start_step, time.perf_counter() - start),
            "stages_s": measured.stages_s,
            "queue": {"ready": measured.ready, "depth": measured.depth},
            "usage": measured.usage(),
            "effective": assembly.effective,
        }
        if leads:
            write_json(run_dir / "summary.json", summary)
        return summary
    finally:
        for sink in trainer.sinks if trainer is not None else ():
            sink.close()
        assembly.close()


def _found(resume: Config) -> RecoveredState | None:
    """The state to go on from; None to begin."""
    run_dir = resume["run"]
    if run_dir is None or (resume["auto"] and newest_path(Path(run_dir)) is None):
        return None
    return newest_state(Path(run_dir))


def _of_damage(found: RecoveredState) -> list[str]:
    if not found.damaged:
        return []
    return [f"{', '.join(found.damaged)} cannot be read; going on from {found.path.name}"]


def _finished(run_dir: Path) -> dict[str, Any] | None:
    """The summary of a run that came to its end; None where it was killed before it could write one."""
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return summary if summary["status"] == "finished" else None


def _ignored(text: str) -> None:
    """Print nothing: rank 0 speaks for all."""


def _not_continued(
    summary: dict[str, Any],
    run_dir: Path,
    assembly: Assembly,
    trainer: Trainer,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """The summary of a run that has no steps left, with new figures if its validation data is new."""
    if assembly.validates_anew:
        for note in assembly.notes:
            say(f"note: {note}")
        if assembly.parallel.rank == 0:
            _add_facts(run_dir, assembly)
        trainer.validate()
        summary = {
            **summary,
            "val": trainer.val_means,
            "best": trainer.best,
            "notes": [*summary["notes"], *assembly.notes],
        }
        if assembly.parallel.rank == 0:
            write_json(run_dir / "summary.json", summary)
    say(
        f"note: this run was finished already, after {trainer.progress.step} steps; raise epochs or max_steps to continue"
    )
    return summary


def _check_steps(num_steps: int) -> None:
    """ConfigError C180 for a run that ends before its trace does."""
    if num_steps < LEAST_STEPS:
        what = f"the run has {num_steps} steps, and the trace is of steps {LEAST_STEPS - TRACED + 1} to {LEAST_STEPS}"
        raise ConfigError(
            180,
            "debug = profile",
            what,
            f"raise max_steps or epochs, so that there are {LEAST_STEPS} or more",
        )


def _summary(
    config: Config, trainer: Trainer, notes: list[str], start_step: int, wall_s: float
) -> dict[str, Any]:
    found = shares(trainer.spans)
    return {
        "status": "interrupted" if trainer.stopped else "finished",
        "steps": trainer.progress.step,
        "run_steps": trainer.progress.step - start_step,
        "epochs": trainer.progress.epoch,
        "wall_s": wall_s,
        "records_per_s": trainer.num_records / trainer.train_s if trainer.train_s else 0.0,
        "val": trainer.val_means,
        "best": trainer.best,
        "spans": {
            name: {**_figures(span), "share": found[name]} for name, span in trainer.spans.items()
        },
        "train_s": trainer.train_s,
        "validate_s": trainer.validate_s,
        "skipped_steps": trainer.progress.step - trainer.progress.scheduled,
        "peak_rss_bytes": peak_rss_bytes(),
        "choices": choices(config),
        "notes": notes,
    }


def _figures(span: Span) -> dict[str, float]:
    return {
        "total_s": span.total_s,
        "mean_s": span.mean_s,
        "p50_s": span.p50_s,
        "p90_s": span.p90_s,
    }


def choices(config: Config) -> dict[str, str]:
    """The four groups' choices: the name of the module that each block names."""
    blocks = {
        "data": config["data"]["source"],
        **{name: config[name] for name in ("loader", "parallel", "precision")},
    }
    return {name: str(block["_target_"]).split(".")[-2] for name, block in blocks.items()}


def facts(command: list[str], overrides: list[str]) -> dict[str, Any]:
    """What ``run.json`` says at the start."""
    return {
        "command": command,
        "overrides": overrides,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": {"python": platform.python_version(), **_versions()},
        "git": _git_revision(),
        "machine": machine(),
    }


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in (
        "paceline",
        "torch",
        "hydra-core",
        "omegaconf",
        "numpy",
        "h5py",
        "lmdb",
        "simplejpeg",
        "nvidia-dali-cuda120",
    ):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _git_revision() -> str | None:
    """The revision of the code in the working directory, ``+`` where it was changed since; None outside a repository."""
    try:
        words = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _add_facts(run_dir: Path, assembly: Assembly) -> None:
    """Complete ``run.json`` with the data's manifests; a resumed run's new facts take the place of the old ones, and what was said of its end goes:
    whoever reads it would take a run that is killed for a finished one.
    """
    paths = [path for path in (run_dir / NEXT_FACTS, run_dir / FACTS) if path.exists()]
    known = json.loads(paths[0].read_text(encoding="utf-8")) if paths else facts(sys.argv, [])
    known["data"] = {split: asdict(source.manifest) for split, source in assembly.sources.items()}
    known["auto"] = assembly.from_data
    write_json(run_dir / FACTS, known)
    _complete_resolved(run_dir, assembly)
    for name in ("summary.json", "exit.json"):
        (run_dir / name).unlink(missing_ok=True)


def _complete_resolved(run_dir: Path, assembly: Assembly) -> None:
    """Write what ``auto`` stood for into the newest ``resolved.json``: the run's own configuration, with numbers."""
    paths = [
        path
        for path in run_dir.glob("resolved*.json")
        if re.fullmatch(r"resolved(\.\d+)?\.json", path.name)
    ]
    if not paths or not assembly.from_data:
        return
    newest = max(paths, key=lambda path: (len(path.name), path.name))
    config = json.loads(newest.read_text(encoding="utf-8"))
    for name, value in assembly.from_data.items():
        with suppress(KeyError, ValueError):  # a key with a dot in it stays ``auto`` here
            _put(config, name, value)
    write_json(newest, config)


def _put(config: Config, name: str, value: Any) -> None:
    """Set the value at a dotted name."""
    *parents, key = name.split(".")
    block: Any = config
    for parent in parents:
        block = block[int(parent)] if isinstance(block, list) else block[parent]
    block[key] = value
