"""One training run: build its parts, train, and write the files that describe the run."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from framework.augment.normalize import pixel_kernel
from framework.config import auto, init_weights, schema, targets
from framework.config.assemble import Assembly, check_agreement, fuses, gathered
from framework.config.resume import fits_run, put, restore
from framework.config.training_parts import measure_recompute, open_sinks, training_parts
from framework.contracts import records, span, waits
from framework.data.source import StoreSource, WorkerSource
from framework.errors import ConfigError
from framework.measure.clock import LEAST_STEPS, TRACED
from framework.measure.host import machine, peak_rss_bytes, threads_per_rank
from framework.measure.usage import Usage
from framework.order.draws import draw_kernel
from framework.sink.base import MeasuredSink
from framework.system import native
from framework.system import run_dir as files
from framework.system.imports import load
from framework.train.checkpoint import FOLDER, newest_path, newest_state, take_best
from framework.train.parameter_groups import GROUP, NAME, part_blocks
from framework.train.trainer import Trainer
from framework.train.weights import Freeze

PACKAGES = (
    *("paceline", "torch", "hydra-core", "omegaconf", "numpy", "h5py", "lmdb", "simplejpeg"),
    "nvidia-dali-cuda120",
)
NOT_COMPILED = (
    "the C functions are not compiled: images are scaled by other libraries, up to one level off, "
    "beside Python's lock; stored values are gathered at half the speed, and changed on the CPU at "
    "a quarter; install a C compiler, then Paceline again"
)
MOST_CHARACTERS = 160  # of a value in a note, such as the weights of a thousand classes


def run(
    config: targets.Config,  # resolved by Hydra into plain values
    run_dir: Path,
    allowed: tuple[str, ...],  # prefixes of the user's packages, whose classes may be named
    stop: Callable[[], bool],  # returns whether to stop; called after every step
    say: Callable[[str], None],  # prints a note or a warning
) -> dict[str, Any]:
    """Train one rank of a run and return its summary. Only rank 0 writes files and prints."""
    load("torch._dynamo")  # as each optimizer of torch does
    torch.set_num_threads(threads_per_rank())
    start = time.perf_counter()
    resume = config["resume"]
    saved = None
    if resume["run"] is not None and not (
        resume["auto"] and newest_path(Path(resume["run"])) is None
    ):
        saved = newest_state(Path(resume["run"]))
        with fits_run(resume["run"]):
            config = init_weights.with_saved_digest(config, saved.state)
    profile = run_dir / schema.PROFILE if config["debug"] == "profile" else None
    with closing(Assembly(config, allowed, say, profile)) as assembly:
        trainer = Trainer(training_parts(assembly, run_dir, stop))
        val_changed = saved is not None and restore(trainer, assembly, saved.state)
        if saved is not None and assembly.leads and not val_changed:
            take_best(saved.path.parent, run_dir / FOLDER)
        step = trainer.progress.step
        # Ranks that see different run directories would continue from different steps.
        check_agreement(assembly.parallel, {"step": step})
        notes = choice_notes(assembly)
        if val_changed:
            dropped = "earlier results are dropped, and best starts over"
            notes.insert(0, f"validation data differs from the saved run's: {dropped}")
        if saved is not None and saved.damaged:
            damaged = ", ".join(saved.damaged)
            notes.insert(0, f"{damaged} cannot be read; continuing from {saved.path.name}")
        # Rank 0 reads for all ranks: it removes the file soon.
        finished = files.read_object(run_dir / files.SUMMARY) if assembly.leads else {}
        finished = gathered(assembly.parallel, finished)[0]
        continues = step < trainer.total_steps and not trainer.ended
        if continues or finished.get("status") != "finished":
            return _fit(assembly, trainer, run_dir, notes, start)
        is_untested = bool(assembly.tests) and finished.get("test_data") != assembly.tests_on
        if val_changed or is_untested:  # evaluate on the new data
            _start_files(run_dir, assembly, notes, step)
            with ExitStack() as stack:
                sinks = open_sinks(stack, assembly, trainer, run_dir)
                if val_changed:
                    trainer.validate(sinks)
                    finished |= {"val": trainer.val_means}
                    finished |= {"best": trainer.best, "bests": trainer.bests}
                if assembly.tests:  # with the new best weights
                    tested = trainer.test(assembly.tests, sinks)
                    finished |= {"test": tested, "test_data": assembly.tests_on}
            finished["notes"] = [*finished["notes"], *notes]
            if assembly.leads:
                files.write_object(run_dir / files.SUMMARY, finished)
        end = f", after {step} steps; raise epochs or max_steps"
        if trainer.ended:
            end = f" early, after {step} steps: {trainer.ended}"
            end += "; change what ended it (stop, or watchers)"
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
            return waits.slow_block(assembly.train_source.slow_records(), assembly.waits)

        tuning = assembly.tuning
        tuned = tuning.take if tuning is not None else dict
        measured = MeasuredSink(sinks, assembly.train.stats, usage, start_step, slow, tuned)
        reported = [measured] if assembly.leads else []
        try:
            trainer.fit(reported)
            # A kill has interrupted the validation of a finished run on new data.
            if (start_step >= trainer.total_steps or trainer.ended) and not trainer.val_means:
                trainer.validate(reported)
            recompute: dict[str, float] = {}
            if assembly.config["recompute"] and not trainer.stopped:
                recompute = measure_recompute(assembly, trainer.parts)
            tested: dict[str, float] = {}
            if assembly.tests and not trainer.stopped:
                tested = trainer.test(assembly.tests, reported)
        except Exception as error:
            # Tracebacks and exit.json show the step.
            error.add_note(f"{schema.AFTER_STEP}{trainer.progress.step}")
            raise
        pace = trainer.pace
        ranks = trainer.ranks.whole
        step = trainer.progress.step
        summary = {
            "status": "interrupted" if trainer.stopped else "finished",
            "reason": trainer.ended,
            "steps": step,
            "run_steps": step - start_step,
            "epochs": trainer.progress.epoch,
            "records_per_s": pace.num_records / pace.train_s if pace.train_s else 0.0,
            "val": trainer.val_means,
            "best": trainer.best,
            "bests": trainer.bests,
            "test": tested,
            "test_data": tested and assembly.tests_on,
            "spans": span.span_figures(trainer.spans.whole),
            "ranks": ranks and ranks.as_dict(),
            "train_s": pace.train_s,
            "validate_s": trainer.validate_s,
            "skipped_steps": step - trainer.progress.scheduled,
            "peak_rss_bytes": peak_rss_bytes(),
            "wall_s": time.perf_counter() - start,
            "choices": choices(assembly.config),
            "notes": notes,
            "stages_s": measured.stages_s,
            "queue": {"ready": measured.ready, "depth": measured.depth},
            "usage": measured.usage(),
            "content": measured.content,
            "recompute": recompute,
            "tuning": tuning.summary() if tuning is not None else {},
            "slow_records": waits.joined_blocks(gathered(assembly.parallel, slow())),
            "effective": assembly.effective,
            "records_per_epoch": assembly.train_source.order.num_places,
        }
        if assembly.leads:
            files.write_object(run_dir / files.SUMMARY, summary)
        return summary


def _start_files(run_dir: Path, assembly: Assembly, notes: list[str], start_step: int) -> None:
    """Print the notes, and add the data's manifests and the start of this part to ``run.json``."""
    for note in notes:
        assembly.say(f"note: {note}")
    if not assembly.leads:
        return
    paths = [path for path in (run_dir / files.NEXT_FACTS, run_dir / files.FACTS) if path.exists()]
    known = files.read_json(paths[0]) if paths else facts(sys.argv, [])
    known["data"] = {split: asdict(source.manifest) for split, source in assembly.sources.items()}
    known["auto"] = assembly.from_data
    newest = files.newest_config(run_dir)
    # Parts that began later than this one are void: their steps are taken again.
    before = files.read_object(run_dir / files.FACTS).get("starts", [])
    starts = [part for part in before if part["step"] < start_step]
    part = {"config": newest.name, "ranks": assembly.parallel.world_size, "folder": known["folder"]}
    # ranks that started again are no new part
    if not starts or starts[-1] != {**part, "step": starts[-1]["step"]}:
        starts.append({"step": start_step, **part})
    known["starts"] = starts
    if assembly.config["init"]["weights"] is not None:
        known["init"] = assembly.config["init"]
    files.write_object(run_dir / files.FACTS, known)
    if newest.exists() and assembly.from_data:
        config = files.read_json(newest)
        for name, value in assembly.from_data.items():  # each ``auto``
            put(config, name, value)
        files.write_object(newest, config, redact=False)
    for name in (files.SUMMARY, files.ENDED):  # a resumed run would look finished after a kill
        (run_dir / name).unlink(missing_ok=True)


def choices(config: targets.Config) -> dict[str, str]:
    """Return the module of each choice that decides speed, such as ``{"loader": "prefetch"}``."""
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
    # The commit of the working directory, with ``+`` if tracked files have changed. Git compares
    # them with programs that the repository names, so only where code of the folder may run.
    git = ["git", "rev-parse", "HEAD"]
    if os.getcwd() in sys.path:
        git = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    revision = ""
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(git, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
        revision = done.stdout.strip()
    return {
        "command": command,
        "overrides": overrides,
        "folder": os.getcwd(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "versions": versions,
        "git": revision or None,
        "machine": machine(),
    }


def first_line(assembly: Assembly, model: nn.Module) -> str:
    """Return what a run begins with: the choices that decide what is learned, and how fast."""
    config, source = assembly.config, assembly.train_source
    words = {"model": "", "optim": "", "schedule": "", "precision": "", "batch_size": ""}
    for key in ("model", "optim", "schedule", "precision", "loader"):
        # the name of its file for a choice of our own, that of its class for others
        *package, module, name = config[key]["_target_"].split(".")
        words[key] = module if package[:1] == ["framework"] else name
    words["model"] += f" with {sum(own.numel() for own in model.parameters()):,} parameters"
    rate = assembly.effective.get("lr", config["optim"].get("lr"))
    if rate is not None:
        words["optim"] += f" with lr {rate:g}"
    if blocks := part_blocks(config["optim"]):
        kinds = {part: block["_target_"].rpartition(".")[2] for part, block in blocks.items()}
        words["optim"] = " and ".join(f"{kind} of {part}" for part, kind in kinds.items())
    words["batch_size"] = str(source.order.batch_size)
    if assembly.parallel.world_size > 1:
        words["batch_size"] += f" over {assembly.parallel.world_size} ranks"
    if isinstance(source, WorkerSource):
        num = source.workers.num
        words["loader"] += f" with {num} worker{'s' if num != 1 else ''}"
    words["device"] = str(assembly.device)
    return "training: " + ", ".join(f"{key} {value}" for key, value in words.items())


def choice_notes(assembly: Assembly) -> list[str]:
    """Return the notes on the choices, data, ranks and loader of a run."""
    config, scaling, notes = assembly.config, assembly.scaling, [*assembly.notes]
    typed: dict[str, list[str]] = {"model": [], "data": []}
    for name, value in assembly.from_data.items():
        text = json.dumps(value, separators=(",", ":"))
        if len(text) > MOST_CHARACTERS:
            text = f"{text[:MOST_CHARACTERS]}..."
        origin = "data"
        if value is not None and value == assembly.declared.get(name.rpartition(".")[2]):
            origin = "model"
        typed[origin].append(f"{name}={text}")
    notes += [f"from the {origin}: {', '.join(words)}" for origin, words in typed.items() if words]
    notes += auto.contradictions(config, assembly.declared, assembly.from_data)
    for source in assembly.sources.values():
        notes += records.notes_of(source)
    store = assembly.train_source
    if config["collate"] != "pad" and isinstance(store, StoreSource) and not store.read.ragged:
        notes.append(f"collate={config['collate']}: no field has a length of its own")
    if config["folds"] is not None:
        together = f", with equal {config['fold_by']} in one fold" if config["fold_by"] else ""
        fold = f"fold {config['fold']} of {config['folds']} of data.train"
        notes.append(f"{fold} validates{together}")
    if config["rank_batch_size"] is not None:
        makes = f"makes batch_size {scaling.batch_size}, over all ranks and accumulation"
        notes.append(f"rank_batch_size={config['rank_batch_size']} {makes}")
    if scaling.rule != "none":
        effective = ", ".join(f"{key} {value:g}" for key, value in assembly.effective.items())
        notes.append(f"optim.scaling={scaling.rule}: {effective}")
    if config["cuda_graph"] and not assembly.captures:
        notes.append(f"cuda_graph=true: {assembly.graph_refusal}; steps run kernel by kernel")
    on_gpu = assembly.device.type != "cpu"
    if config["compile"] and on_gpu and not fuses(config, assembly.augment, assembly.device):
        why = "the augmentation is not said to be exact, and runs kernel by kernel"
        notes.append(f"compile=true: {why}")
    if not native.are_compiled():
        notes.append(NOT_COMPILED)
    kernels = {
        "cuts and normalizes pixels at once": pixel_kernel,
        "makes random numbers": draw_kernel,
    }
    for what, kernel in kernels.items():
        if on_gpu and kernel.failure:
            notes.append(f"augment: no kernel {what} ({kernel.failure}); torch's operators do it")
    return [*notes, *assembly.parallel.notes, *assembly.train.notes]


def group_table(
    model: nn.Module, optimizer: torch.optim.Optimizer, freeze: Freeze | None
) -> str | None:
    """Return a table of groups and times of thawing; None for one group of which none is frozen."""
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    rows: list[list[str]] = []
    for group in optimizer.param_groups:
        by_thaw: dict[str, list[Any]] = {}
        for parameter in group["params"]:
            name = name_of.get(id(parameter), GROUP)  # what an objective owns is never frozen
            thaw = ""
            if freeze is not None and freeze.is_frozen(name):
                step = freeze.thaws[name]
                thaw = "never" if step is None else f"step {step}"
            by_thaw.setdefault(thaw, []).append(parameter)
        decay = f"{group['weight_decay']:.4g}" if "weight_decay" in group else ""
        for thaw, parameters in by_thaw.items():
            size = sum(parameter.numel() for parameter in parameters)
            cells = [group.get(NAME, "all"), f"{len(parameters):,}", f"{size:,}"]
            rows.append([*cells, f"{group['lr']:.4g}", decay, thaw])
    if len(rows) == 1 and freeze is None:
        return None
    headings = ["group", "tensors", "parameters", "lr", "weight decay", "thaws at"]
    # without weight decay and thawing if no group has any
    columns = [column for column in zip(headings, *rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    lines: list[str] = []
    for name, *cells in zip(*columns, strict=True):
        others = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        lines.append("  ".join([name.ljust(widths[0]), *others]).rstrip())
    return "\n".join(lines)
