"""One training run: build its parts, train, and write the files that describe the run."""

import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from framework.config.assemble import Assembly, assemble
from framework.config.choice_notes import choice_notes, first_line, group_table
from framework.config.init_weights import with_saved_digest
from framework.config.preflight import check_agreement, gathered
from framework.config.resume import check_form, fits_run, restore
from framework.config.saved_config import put
from framework.config.schema import AFTER_STEP, PROFILE
from framework.config.training_parts import open_sinks, training_parts
from framework.contracts.parallel import Parallel
from framework.contracts.span import Span, shares
from framework.contracts.waits import joined_blocks, slow_block
from framework.errors import ConfigError
from framework.measure.host import machine, peak_rss_bytes, threads_per_rank
from framework.measure.profile import LEAST_STEPS, TRACED
from framework.measure.usage import Usage
from framework.sink.relays import MeasuredSink
from framework.system.run_dir import (
    ENDED,
    FACTS,
    NEXT_FACTS,
    SUMMARY,
    newest_config,
    read_json,
    read_object,
    write_object,
)
from framework.train.checkpoint import RecoveredState, newest_path, newest_state, read_stamp
from framework.train.trainer import Trainer

Config = dict[str, Any]

PACKAGES = (
    *("paceline", "torch", "hydra-core", "omegaconf", "numpy", "h5py", "lmdb", "simplejpeg"),
    "nvidia-dali-cuda120",
)


def run(
    config: Config,
    run_dir: Path,
    allowed: tuple[str, ...],
    stop: Callable[[], bool],
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Train one rank of a run and return its summary. Only rank 0 writes files and prints.

    Args:
        config: The configuration, resolved by Hydra into plain values.
        run_dir: The directory of the run.
        allowed: Prefixes of the user's packages, whose classes the configuration may name.
        stop: Returns whether to stop. Called after every step.
        say: Prints a note or a warning.
    """
    torch.set_num_threads(threads_per_rank())
    start = time.perf_counter()
    saved = _saved_state(config["resume"])
    profile: Path | None = None
    if config["debug"] == "profile":
        profile = run_dir / PROFILE
    if saved is not None:
        config = with_saved_digest(config, saved.state)
    with closing(assemble(config, allowed, say, profile)) as assembly:
        trainer = Trainer(training_parts(assembly, run_dir, stop))
        val_changed = saved is not None and restore(trainer, assembly, saved.state)
        # Ranks that see different run directories would continue from different steps.
        check_agreement(assembly.parallel, {"step": trainer.progress.step})
        notes = list(choice_notes(assembly))
        if val_changed:
            dropped = "earlier results are dropped, and best starts over"
            notes.insert(0, f"validation data differs from the saved run's: {dropped}")
        if saved is not None and saved.damaged:
            damaged = ", ".join(saved.damaged)
            notes.insert(0, f"{damaged} cannot be read; continuing from {saved.path.name}")
        finished = _finished_summary(run_dir, assembly.parallel)
        goes_on = trainer.progress.step < trainer.total_steps and not trainer.ended
        if goes_on or finished is None:
            return _fit(assembly, trainer, run_dir, notes, start)
        if val_changed:
            finished = _revalidate(finished, notes, run_dir, assembly, trainer)
        early = f" early, after {trainer.progress.step} steps: {trainer.ended}"
        end = f"{early}; change what ended it (stop, or watchers)"
        if not trainer.ended:
            end = f", after {trainer.progress.step} steps; raise epochs or max_steps"
        assembly.say(f"note: this run has already finished{end} to continue")
        return finished


def _fit(
    assembly: Assembly, trainer: Trainer, run_dir: Path, notes: list[str], start: float
) -> dict[str, Any]:
    """Train, and return the summary. ``start`` is the start of the run by ``perf_counter``."""
    start_step = trainer.progress.step
    num_steps = trainer.total_steps - start_step
    if assembly.trace is not None and num_steps < LEAST_STEPS:
        traced = f"{LEAST_STEPS - TRACED + 1} to {LEAST_STEPS}"
        what = f"{num_steps} steps remain, but the trace records steps {traced}"
        fix = f"raise max_steps or epochs, so that at least {LEAST_STEPS} steps remain"
        raise ConfigError(180, "debug = profile", what, fix)
    _start_files(run_dir, assembly, notes, start_step)
    stepper = trainer.stepper
    assembly.say(first_line(assembly, stepper.model))
    table = group_table(stepper.model, stepper.optimizer, trainer.parts.freeze)
    if table is not None:
        assembly.say(table)
    with ExitStack() as stack:
        usage = Usage(assembly.device).lap
        sinks = open_sinks(stack, assembly, trainer, run_dir)

        def slow() -> dict[str, Any]:
            return slow_block(assembly.train_source.slow_records(), assembly.waits)

        tuning = assembly.tuning
        tuned = tuning.take if tuning is not None else dict
        measured = MeasuredSink(sinks, assembly.train.stats, usage, start_step, slow, tuned)
        reported = [measured] if assembly.leads else []
        try:
            trainer.fit(reported)
            # A kill has interrupted the validation of a finished run on new data.
            is_over = start_step >= trainer.total_steps or trainer.ended
            if is_over and not trainer.val_means:
                trainer.validate(reported)
        except Exception as error:
            # Tracebacks and exit.json show the step.
            error.add_note(f"{AFTER_STEP}{trainer.progress.step}")
            raise
        summary = {
            **_summary(assembly.config, trainer, notes, start_step, time.perf_counter() - start),
            "stages_s": measured.stages_s,
            "queue": {"ready": measured.ready, "depth": measured.depth},
            "usage": measured.usage(),
            "content": measured.content,
            "tuning": tuning.summary() if tuning is not None else {},
            "slow_records": joined_blocks(gathered(assembly.parallel, slow())),
            "effective": assembly.effective,
            "records_per_epoch": assembly.train_source.order.num_places,
        }
        if assembly.leads:
            write_object(run_dir / SUMMARY, summary)
        return summary


def _saved_state(resume: Config) -> RecoveredState | None:
    """Return the state to continue from, or None to start from the beginning."""
    if resume["run"] is None:
        return None
    run_dir = Path(resume["run"])
    if resume["auto"] and newest_path(run_dir) is None:
        return None
    saved = newest_state(run_dir)
    with fits_run(resume["run"]):
        check_form(saved.state)
        with open(saved.path, "rb") as file:
            if read_stamp(file).step != saved.state["progress"]["step"]:
                raise ValueError("its progress is that of another step")
    return saved


def _finished_summary(run_dir: Path, parallel: Parallel) -> dict[str, Any] | None:
    """Return the summary of a finished run, or None if the run was killed or stopped early.

    All ranks call it together and get what rank 0 reads. Rank 0 removes the file soon after, so
    that a rank that read it later would train while the others validate.
    """
    summary: dict[str, Any] | None = None
    if parallel.rank == 0:
        summary = read_object(run_dir / SUMMARY)
    if summary is not None and summary.get("status") != "finished":
        summary = None
    return gathered(parallel, {"summary": summary})[0]["summary"]


def _revalidate(
    summary: dict[str, Any], notes: list[str], run_dir: Path, assembly: Assembly, trainer: Trainer
) -> dict[str, Any]:
    """Validate a finished run on new validation data, and return the new summary."""
    _start_files(run_dir, assembly, notes, trainer.progress.step)
    with ExitStack() as stack:
        trainer.validate(open_sinks(stack, assembly, trainer, run_dir))
    summary = {
        **summary,
        "val": trainer.val_means,
        "best": trainer.best,
        "notes": [*summary["notes"], *notes],
    }
    if assembly.leads:
        write_object(run_dir / SUMMARY, summary)
    return summary


def _start_files(run_dir: Path, assembly: Assembly, notes: list[str], start_step: int) -> None:
    """Write the facts that are known before the first step, and print the notes."""
    if assembly.leads:
        _add_facts(run_dir, assembly, start_step)
    for note in notes:
        assembly.say(f"note: {note}")


def _summary(
    config: Config, trainer: Trainer, notes: list[str], start_step: int, wall_s: float
) -> dict[str, Any]:
    pace = trainer.pace
    ranks = trainer.ranks.whole
    return {
        "status": "interrupted" if trainer.stopped else "finished",
        "reason": trainer.ended,
        "steps": trainer.progress.step,
        "run_steps": trainer.progress.step - start_step,
        "epochs": trainer.progress.epoch,
        "wall_s": wall_s,
        "records_per_s": pace.num_records / pace.train_s if pace.train_s else 0.0,
        "val": trainer.val_means,
        "best": trainer.best,
        "spans": span_figures(trainer.spans.whole),
        "ranks": ranks and ranks.as_dict(),
        "train_s": pace.train_s,
        "validate_s": trainer.validate_s,
        "skipped_steps": trainer.progress.step - trainer.progress.scheduled,
        "peak_rss_bytes": peak_rss_bytes(),
        "choices": choices(config),
        "notes": notes,
    }


def span_figures(spans: Mapping[str, Span]) -> dict[str, dict[str, float]]:
    """Return the figures of each span, as ``summary.json`` has them."""
    share_of = shares(spans)
    return {
        name: {
            "total_s": span.total_s,
            "mean_s": span.mean_s,
            "p50_s": span.p50_s,
            "p90_s": span.p90_s,
            "share": share_of[name],
        }
        for name, span in spans.items()
    }


def choices(config: Config) -> dict[str, str]:
    """Return the choice of each group that decides speed, such as ``{"loader": "prefetch"}``.

    A choice is named by the module of its class.
    """
    blocks = {"data": config["data"]["source"]}
    for name in ("loader", "parallel", "precision"):
        blocks[name] = config[name]
    return {name: str(block["_target_"]).split(".")[-2] for name, block in blocks.items()}


def facts(command: list[str], overrides: list[str]) -> dict[str, Any]:
    """Return the content of ``run.json`` at the start of a run."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "command": command,
        "overrides": overrides,
        "folder": os.getcwd(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions,
        "git": _git_revision(),
        "machine": machine(),
    }


def _git_revision() -> str | None:
    """Return the git commit of the working directory, with ``+`` if tracked files have changed.

    Return None outside a repository, where git is not even started.
    """
    if not any(Path(folder, ".git").exists() for folder in (".", *Path.cwd().parents)):
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def _add_facts(run_dir: Path, assembly: Assembly, start_step: int) -> None:
    """Add the data's manifests and where the run was resumed to ``run.json``.

    If the run is resumed, its facts replace the old ones. The old summary and exit code are
    removed. Otherwise, a resumed run would look finished after a kill.
    """
    paths = [path for path in (run_dir / NEXT_FACTS, run_dir / FACTS) if path.exists()]
    known = read_json(paths[0]) if paths else facts(sys.argv, [])
    known["data"] = {split: asdict(source.manifest) for split, source in assembly.sources.items()}
    known["auto"] = assembly.from_data
    known["starts"] = _starts(run_dir, start_step, assembly.parallel.world_size, known["folder"])
    if assembly.config["init"]["weights"] is not None:
        known["init"] = assembly.config["init"]
    write_object(run_dir / FACTS, known)
    newest = newest_config(run_dir)
    if newest.exists() and assembly.from_data:
        config = read_json(newest)
        for name, value in assembly.from_data.items():  # each ``auto``
            put(config, name, value)
        write_object(newest, config, redact=False)
    for name in (SUMMARY, ENDED):
        (run_dir / name).unlink(missing_ok=True)


def _starts(run_dir: Path, start_step: int, ranks: int, folder: str) -> list[dict[str, Any]]:
    """Return the step after which each part of a run began, its configuration, ranks and folder.

    Parts that began later than the newest are void: their steps are taken again.
    """
    before = read_object(run_dir / FACTS).get("starts")
    if not isinstance(before, list) or not all(type(part) is dict for part in before):
        before = []
    newest = {"config": newest_config(run_dir).name, "ranks": ranks, "folder": folder}
    kept = [part for part in before if type(part.get("step")) is int and part["step"] < start_step]
    if kept and kept[-1] == {**newest, "step": kept[-1]["step"]}:  # ranks that started again
        return kept
    return [*kept, {"step": start_step, **newest}]
