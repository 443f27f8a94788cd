"""Build what trains: the model, tried on a few records, and everything that the Trainer runs
with.
"""

import math
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from framework.config.assemble import Assembly, fused, fuses_by_default
from framework.config.auto import wrong_channels
from framework.config.build import build, build_schedule, last_line
from framework.config.foreign_models import LOADS, is_from_folder
from framework.config.init_weights import DIGEST, folder_note, load_teacher, start_from_weights
from framework.config.preflight import (
    MISFITS,
    NUM_SAMPLES,
    ModelTrial,
    check_fit,
    fits,
    try_augment,
    try_smallest,
)
from framework.config.run_watchers import (
    check_metric,
    make_goal,
    make_metrics,
    make_watching,
    try_metrics,
)
from framework.contracts.batch import Batch, move, taken, tensors
from framework.contracts.class_labels import KnowsLabelRange
from framework.contracts.data import Source
from framework.contracts.parallel import Precision
from framework.contracts.records import LABEL, KnowsColumns
from framework.contracts.training import (
    Objective,
    RunContext,
    Sink,
)
from framework.data.dali import DALISource
from framework.data.dataloader import LoaderSource
from framework.data.source import StoreSource
from framework.errors import ConfigError, PacelineError, ResourceError
from framework.media.label_map import colored
from framework.objective.own_loss import OwnLoss
from framework.parallel.ddp import warm_up_ddp
from framework.schedule.plateau import Plateau
from framework.sink.relays import TolerantSink
from framework.store.columns import is_number
from framework.system.rng import kept_generators
from framework.train.checkpoint import CheckpointFolder
from framework.train.cuda_graph import CudaRecorder
from framework.train.ema import Average
from framework.train.freeze import Freeze, Thaws, freeze_layers, thaws_of
from framework.train.metrics import TrainPlan
from framework.train.objective_state import ObjectiveState, evaluating, untouched
from framework.train.parameter_groups import (
    GROUP,
    NAME,
    check_options,
    is_grouped,
    optimizer_keys,
    parameter_groups,
)
from framework.train.parts import Parts
from framework.train.trainer import Trainer
from framework.train.weight_files import start_from_data


def training_parts(
    assembly: Assembly, run_dir: Path | None = None, stop: Callable[[], bool] = lambda: False
) -> Parts:
    """Build the parts of a Trainer over ``assembly``. The model is tried on a few records.

    Args:
        assembly: Data, loaders and ranks.
        run_dir: Where states are saved; None to write nothing, as when measuring. Then nothing
            watches the run, either.
        stop: Asked after every step whether to stop.

    Raises:
        ConfigError: C118 if the model or the augmentation does not fit the data.
    """
    config, parallel = assembly.config, assembly.parallel
    objective: Objective = assembly.build("objective")
    load_teacher(objective)
    owned = ObjectiveState(objective, parallel, assembly.say)
    owned.check(_refusal(assembly))
    precision: Precision = assembly.build("precision", device=assembly.device)
    with untouched(objective):  # records that it sees before training leave no trace
        model, thaws, trial = _model(assembly, objective, precision)
        owned.check_called(parallel.unwrap(model))
    order = assembly.train_source.order
    is_cut = order.accumulate > 1 or order.world_size > 1 or (order.virtual_ranks or 1) > 1
    if is_cut and isinstance(objective, OwnLoss) and objective.unknown_mean:
        raise objective.unknown_mean  # several passes or ranks would not learn what one does
    _check_labels(assembly, objective)
    classes = assembly.train_source.manifest.classes
    metrics = make_metrics(config, assembly.allowed, parallel, assembly.say, classes)
    if metrics is not None:
        trial = try_metrics(metrics, trial)
    optimizer = _optimizer(assembly, model, owned)
    schedule, setter = build_schedule(
        config["schedule"],
        assembly.allowed,
        optimizer,
        assembly.effective.get("warmup_steps"),
    )
    if isinstance(schedule, Plateau) and assembly.val is None:
        where = f"schedule = {config['schedule']['_target_']}"
        what = "follows a metric of validation, and there is no validation data"
        raise ConfigError(314, where, what, "give data.val, or choose another schedule")
    average = checkpoints = recorder = best = watching = None
    if config["ema_decay"] is not None:
        average = Average(
            parallel.unwrap(model),
            config["ema_decay"],
            every=config["ema_every"],
            ramp=config["ema_ramp"],
            lookahead=config["ema_lookahead"],
        )
    if run_dir is not None:
        checkpoints = _checkpoints(assembly, run_dir)
        best, stop_goal = (
            make_goal(key, assembly, objective, trial, metrics) for key in ("best", "stop")
        )
        watching = make_watching(assembly, run_dir, stop_goal)
        if assembly.val_sources:
            check_metric("search_metric", config["search_metric"], assembly, trial)
    if assembly.captures and optimizer.defaults.get("fused"):
        recorder = CudaRecorder(assembly.device)
    source = assembly.train_source
    freeze: Freeze | None = None
    if config["freeze"]:
        rewrap = partial(_rewrapped, assembly, objective, precision)
        freeze = Freeze(parallel.unwrap(model), thaws, thaws_of(config["freeze"]), rewrap)
    parts = Parts(
        plan=_plan(config),
        model=model,
        objective=objective,
        owned=owned,
        optimizer=optimizer,
        schedule=schedule,
        setter=setter,
        freeze=freeze,
        train=assembly.train,
        val=assembly.val,
        parallel=parallel,
        precision=precision,
        clock=assembly.clock,
        val_clock=assembly.val_clock,
        checkpoints=checkpoints,
        average=average,
        stop=stop,
        metrics=metrics,
        best=best,
        watching=watching,
        recorder=recorder,
        sums_records=isinstance(source, LoaderSource) and source.gives_ranks_their_own,
        say=assembly.say,
    )
    if run_dir is not None:
        _try_validation(assembly)
        _try_smallest(assembly, parts)
        if owned.is_there:
            _try_objective(assembly, parts, owned)
    _warm_up(assembly, model, objective, precision)
    return parts


def _plan(config: dict[str, Any]) -> TrainPlan:
    return TrainPlan(
        epochs=config["epochs"],
        max_steps=config["max_steps"],
        report_every=config["report_every"],
        validate_every=config["validate_every"],
        save_every=config["checkpoint"]["every_steps"],
        save_epochs=config["checkpoint"]["every_epochs"],
        clip_norm=config["clip_norm"],
        skip_bad=config["on_nan"] == "skip",
        max_missed=config["max_skips"],
    )


def _checkpoints(assembly: Assembly, run_dir: Path) -> CheckpointFolder:
    chosen = assembly.config["checkpoint"]
    facts = {
        "learned": assembly.learns,
        "validation": assembly.validates,
        "ends": assembly.ends,
        "world_size": assembly.parallel.world_size,
        "init": assembly.config["init"].get(DIGEST),
        "versions": {"torch": str(torch.__version__)},
    }
    return CheckpointFolder(run_dir, facts, chosen["keep"], chosen["every_s"], assembly.say)


def _try_validation(assembly: Assembly) -> None:
    """Read a few images of each validation set that are not scaled. DataError D107 if they differ.

    Otherwise the run would end with this error at its first validation.
    """
    for source in assembly.val_sources.values():
        if not isinstance(source, StoreSource) or not source.read.cut:
            continue
        if source.context.transform.size is None:
            source.sample(NUM_SAMPLES)


def _try_smallest(assembly: Assembly, parts: Parts) -> None:
    """Try the model on as few records as a pass of training and of each validation set will have.

    Ready batches of a user's loader are not tried.

    ConfigError C396 for a model that takes more records, but not so few.
    """
    config = assembly.config
    num_steps = min(config["max_steps"] or math.inf, config["epochs"] * assembly.train.num_steps)
    with ExitStack() as stack:
        stack.enter_context(kept_generators(assembly.device))
        if config["compile"]:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(parts.precision.autocast())
        for split, source in assembly.sources.items():
            if isinstance(source, LoaderSource):
                continue
            model, order = parts.model, source.order
            whole, short = order.smallest_batches
            if split == "train":
                parts.switch_to_training()
                if num_steps < order.num_steps and order.cuts is None:
                    short = 0  # the run ends before
            else:
                model = parts.parallel.unwrap(model).eval()
            tried: dict[int, tuple[str, str]] = {}
            where = f"data.{split}, batch_size = {order.batch_size}"
            if whole:
                fix = "raise it, or lower accumulate or the number of ranks"
                tried[order.smallest_pass(whole)] = (where, fix)
            if short:
                fix = f"choose another val_batch_size, for {order.num_places} records"
                if split == "train":
                    fix = "set last=drop, or last=wrap" if whole else "set last=wrap"
                    where = f"last = {order.last}"
                tried.setdefault(order.smallest_pass(short), (where, fix))
            read = partial(_few, assembly, source)
            few = {size: words for size, words in tried.items() if size <= NUM_SAMPLES}
            mode = nullcontext() if split == "train" else evaluating(parts.objective)
            with untouched(parts.objective), mode:
                try_smallest(model, parts.objective, read, few)
    parts.switch_to_training()


def _try_objective(assembly: Assembly, parts: Parts, owned: ObjectiveState) -> None:
    """Check what a pass in training mode makes and changes in an objective. ConfigError C392."""
    parts.switch_to_training()
    read = partial(_few, assembly, assembly.train_source)
    with ExitStack() as stack:
        stack.enter_context(kept_generators(assembly.device))
        if assembly.config["compile"]:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(parts.precision.autocast())
        stack.enter_context(untouched(parts.objective))
        few = {NUM_SAMPLES: ("", "")}
        # a step may succeed, unlike these passes without gradients
        with suppress(PacelineError):
            try_smallest(parts.model, parts.objective, read, few)
        first = owned.check_called(parts.parallel.unwrap(parts.model))
        if refusal := _refusal(assembly):
            with suppress(PacelineError):
                try_smallest(parts.model, parts.objective, read, {NUM_SAMPLES - 1: ("", "")})
            owned.check_unchanged(first, refusal)


def _few(assembly: Assembly, source: Source, count: int) -> Batch:
    """Return ``count`` records as the model gets them in validation."""
    sample = assembly.sample if source is assembly.train_source else source.sample(count)
    numbers = torch.arange(count) % len(sample["index"])
    return _augmented(assembly, taken(sample, numbers))


def open_sinks(stack: ExitStack, assembly: Assembly, trainer: Trainer, run_dir: Path) -> list[Sink]:
    """Open the sinks of a run, on rank 0 only. ``stack`` closes them.

    A sink that fails later does not end the run.
    """
    if not assembly.leads:
        return []
    pictures = colored(assembly.sample, assembly.train_source.manifest.label_maps)
    epochs, step = assembly.config["epochs"], trainer.progress.step
    run = RunContext(
        run_dir,
        trainer.total_steps,
        epochs,
        step,
        pictures,
        assembly.say,
        has_ended=lambda: bool(trainer.ended),
    )
    sinks: list[Sink] = []
    for name, block in (assembly.config.get("sink") or {}).items():
        built: Sink = build(f"sink.{name}", block, assembly.allowed, run=run)
        sink = TolerantSink(built, assembly.say)
        stack.callback(sink.close)
        sinks.append(sink)
    return sinks


def _model(
    assembly: Assembly, objective: Objective, precision: Precision
) -> tuple[nn.Module, Thaws, ModelTrial]:
    """Build the model, try it on a few records, freeze layers, and wrap it for its ranks.

    Returns:
        The wrapped model, when its frozen parameters thaw, and what the validation of these records
        gives.
    """
    config, parallel, sample = assembly.config, assembly.parallel, assembly.sample
    assembly.notes.clear()
    if is_from_folder(config["model"].get("_target_")):
        built, info = assembly.build("model", **{LOADS: True})
        assembly.notes.append(folder_note(built, info, config))
    else:
        built = assembly.build("model")
    model: nn.Module = built.to(parallel.home)
    if config["channels_last"]:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
    with kept_generators(assembly.device):
        try_augment(config, assembly.augment, sample, assembly.allowed)
    try:
        with precision.autocast():
            records = _at_home(assembly, sample)
            trial = check_fit(model, objective, records, config, assembly.allowed)
    except ConfigError as error:
        why = wrong_channels(config, assembly.train_source, last_line(error.__cause__ or error))
        raise why or error from error.__cause__
    start_from_data(
        model,
        objective,
        assembly.train_source.sample,
        lambda records: _at_home(assembly, records),
    )
    if assembly.starts_from is not None:
        num_classes = len(assembly.train_source.manifest.classes)
        note = start_from_weights(model, assembly.starts_from, config, num_classes)
        assembly.notes.append(note)
    thaws = freeze_layers(model, config["freeze"])
    model = parallel.wrap(model)
    if config["compile"]:
        _compile(model, assembly.device)
    return model, thaws, trial


def _refusal(assembly: Assembly) -> str | None:
    """Return why an objective can own nothing; None if it can."""
    captured = "a captured step does not run its Python"
    return assembly.parallel.objective_refusal or (captured if assembly.captures else None)


def _check_labels(assembly: Assembly, objective: Objective) -> None:
    """Check the labels that a store has in one piece, and let the loaders check those of batches.

    DataError D195 for a label that numbers no class of the model.
    """
    allowed = objective.label_range if isinstance(objective, KnowsLabelRange) else None
    if allowed is None:
        return
    for split, source in assembly.sources.items():
        manifest, check = source.manifest, assembly.label_checks[split]
        is_counted = sum(manifest.class_counts) == manifest.num_records
        if is_counted and allowed.field == LABEL and len(manifest.classes) <= allowed.num_classes:
            continue  # packing has checked them
        field = manifest.fields.get(allowed.field)
        is_stored = isinstance(source, StoreSource | DALISource)
        if is_stored and isinstance(source.store, KnowsColumns) and field and is_number(field):
            used = source.order.used()
            check.check(source.store.column(allowed.field)[used], used, allowed)
        else:
            check.allowed = allowed


def _rewrapped(
    assembly: Assembly, objective: Objective, precision: Precision, wrapped: nn.Module
) -> nn.Module:
    """Wrap a model anew for its ranks after layers have thawed, if that needs it."""
    anew = assembly.parallel.rewrap(wrapped)
    if anew is not wrapped:
        if assembly.config["compile"]:
            _compile(anew, assembly.device)
        _warm_up(assembly, anew, objective, precision)
    return anew


def _at_home(assembly: Assembly, records: Batch) -> Batch:
    """Return records, augmented as in validation, where the model was built."""
    batch = move(_augmented(assembly, records), assembly.parallel.home)
    if assembly.parallel.home != assembly.device:  # where nothing casts as the precision does
        half = (torch.float16, torch.bfloat16)
        batch |= {n: own.float() for n, own in tensors(batch).items() if own.dtype in half}
    return batch


def _augmented(assembly: Assembly, sample: Batch) -> Batch:
    """Augment records as in validation. ConfigError C118."""
    with fits("augment", assembly.config, sample, assembly.allowed):
        return assembly.augmenter(training=False)(move(sample, assembly.device), 0)


def _warm_up(
    assembly: Assembly, model: nn.Module, objective: Objective, precision: Precision
) -> None:
    """Take a pass over as many records as this rank's share of a micro-batch, if DDP needs one."""
    order, num_ranks = assembly.train_source.order, assembly.parallel.world_size
    if num_ranks == 1 or order.virtual_ranks is not None:  # virtual ranks compute without DDP
        return
    length = max(1, order.batch_size // (num_ranks * assembly.config["accumulate"]))
    numbers = torch.arange(length) % len(assembly.sample["index"])
    batch = _augmented(assembly, taken(assembly.sample, numbers))
    try:
        with untouched(objective):
            warm_up_ddp(model, objective, precision, batch, assembly.device)
    except MISFITS as error:  # of ready batches, which nobody has tried; others fail alike
        if length > NUM_SAMPLES:
            raise
        records = "1 record" if length == 1 else f"{length} records"
        what = f"gives a rank passes over {records}, which the model does not take"
        why = f"{what} ({type(error).__name__}: {last_line(error)})"
        fix = "raise the batch size, or lower the number of ranks"
        raise ConfigError(396, f"batch_size = {order.batch_size}", why, fix) from error


def _compile(model: nn.Module, device: torch.device) -> None:
    """Compile the model at its first call, once for each of the two or three sizes of batches.

    ResourceError R105 without a compiler: torch would say so in a hundred lines, in the first step.
    """
    variable = "CC"
    names = ("gcc", "clang")
    if device.type == "cpu":
        variable = "CXX"
        names = ("g++", "clang++")
    candidates = filter(None, (os.environ.get(variable), *names))
    if not any(map(shutil.which, candidates)):
        what = f"no compiler here ({' or '.join(names)})"
        fix = f"install {names[0]}, or set compile=false"
        raise ResourceError(105, "compile = true", what, fix)
    model.compile(dynamic=False)


def _optimizer(
    assembly: Assembly, model: nn.Module, owned: ObjectiveState
) -> torch.optim.Optimizer:
    chosen = assembly.config["optim"]
    block = optimizer_keys(chosen)
    params: list[Any] = list(model.parameters())
    fuses = fuses_by_default(block, model)  # one kernel updates all parameters
    if assembly.captures:
        fuses = all(parameter.is_floating_point() for parameter in params)
        if not fuses:
            what = "no fused optimizer takes complex parameters"
            assembly.say(f"note: cuda_graph=true: {what}; steps run kernel by kernel")
    if fuses:
        block = fused(block)
    if is_grouped(chosen):
        own = {name: weight for weight, name in owned.weights.items()}
        params = parameter_groups(assembly.parallel.unwrap(model), chosen, own)
    elif owned.weights:
        own = {"params": list(owned.weights), NAME: GROUP}
        params = [{"params": params, NAME: "model"}, own]
    if owned.weights:
        assembly.notes.append(owned.note)
    optimizer: torch.optim.Optimizer = build("optim", block, assembly.allowed, params=params)
    check_options(optimizer, chosen)
    for group in optimizer.param_groups:
        group["lr"] *= assembly.scaling.factor
    return optimizer
