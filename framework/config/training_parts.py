"""Build what trains: the model, tried on a few records, and all that the Trainer runs with.

``make_trainer`` is the shortest way from Python: ready DataLoaders, on one device.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from framework.config import auto, build, resume, schema, targets
from framework.config.assemble import Assembly
from framework.config.build import NUM_SAMPLES, ModelTrial
from framework.config.init_weights import DIGEST, folder_note, load_teacher, start_from_weights
from framework.config.optimizers import build_optimizer, by_phase, phases_of
from framework.contracts import class_labels, training
from framework.contracts.batch import Batch, move, taken, tensors
from framework.contracts.data import Source, SourceContext
from framework.contracts.loader import Clock, Loader, LoaderContext
from framework.contracts.parallel import Precision
from framework.contracts.records import LABEL, notes_of
from framework.data.dali import DALISource
from framework.data.dataloader import LoaderSource, loader_source
from framework.data.source import StoreSource
from framework.errors import ConfigError, PacelineError, ResourceError, Say, say, words_of
from framework.loader.plain import PlainLoader
from framework.measure.clock import make_clock
from framework.measure.host import available_memory_bytes
from framework.media.decode import colored
from framework.objective.own_loss import OwnLoss
from framework.order.batches import Order
from framework.parallel.ddp import warm_up_ddp
from framework.parallel.none import NoParallel
from framework.precision.fp32 import FP32
from framework.schedule.constant import Constant
from framework.schedule.plateau import Plateau
from framework.sink.base import TolerantSink
from framework.store.store_facts import is_number
from framework.system.rng import kept_generators
from framework.train import checkpoint, cuda_graph, parameter_groups, recompute, watching
from framework.train.metrics import TrainPlan
from framework.train.objective_state import ObjectiveState, evaluating, untouched
from framework.train.parts import Parts
from framework.train.trainer import Trainer
from framework.train.weights import Average, Freeze, freeze_layers, start_from_data
from framework.transform.none import NoTransform

if TYPE_CHECKING:
    from framework.train.torch_metrics import TorchMetrics


def training_parts(
    assembly: Assembly, run_dir: Path | None = None, stop: Callable[[], bool] = lambda: False
) -> Parts:
    """Build the parts of a Trainer over ``assembly``. The model is tried on a few records.

    Without ``run_dir``, as when measuring, nothing is saved, and nothing watches the run. ``stop``
    is asked after every step. ConfigError C118 if a part does not fit the data.
    """
    config, parallel = assembly.config, assembly.parallel
    objective: training.Objective = assembly.build("objective")
    load_teacher(objective, assembly.say)
    owned = ObjectiveState(objective, parallel, assembly.say)
    refusal = parallel.objective_refusal  # why the objective can own nothing; None if it can
    if assembly.captures:
        refusal = refusal or "a captured step does not run its Python"
    owned.check(refusal)
    phases = phases_of(objective, config, parallel)
    precision: Precision = assembly.build("precision", device=assembly.device)
    with untouched(objective):  # records that it sees before training leave no trace
        model, thaws, trial = _model(assembly, objective, precision, not phases)
        owned.check_called(parallel.unwrap(model))
    source = assembly.train_source
    order = source.order
    is_cut = order.accumulate > 1 or order.world_size > 1 or (order.virtual_ranks or 1) > 1
    if is_cut and isinstance(objective, OwnLoss) and objective.unknown_mean:
        raise objective.unknown_mean  # several passes or ranks would not learn what one does
    _check_labels(assembly, objective)
    classes = source.manifest.classes
    metrics = build.make_metrics(config, assembly.allowed, parallel, assembly.say, classes)
    if metrics is not None:
        trial = build.try_metrics(metrics, trial)
    optimizer = build_optimizer(assembly, model, owned)
    block, warmup_steps = config["schedule"], assembly.effective.get("warmup_steps")
    schedule, setter = build.build_schedule(block, assembly.allowed, optimizer, warmup_steps)
    if isinstance(schedule, Plateau) and assembly.val is None:
        where = f"schedule = {block['_target_']}"
        what = "follows a metric of validation, and there is no validation data"
        raise ConfigError(314, where, what, "give data.val, or choose another schedule")
    average = checkpoints = recorder = best = watchers = freeze = None
    if config["ema_decay"] is not None:
        own = {name: config[f"ema_{name}"] for name in ("every", "ramp", "lookahead")}
        average = Average(parallel.unwrap(model), config["ema_decay"], **own)
    saving = config["checkpoint"]
    if run_dir is not None:
        facts = {
            "learned": assembly.learns,
            "validation": assembly.validates,
            "ends": resume.ending(config),
            "world_size": parallel.world_size,
            "init": config["init"].get(DIGEST),
            "versions": {"torch": str(torch.__version__)},
        }
        keep, every_s = saving["keep"], saving["every_s"]
        checkpoints = checkpoint.CheckpointFolder(run_dir, facts, keep, every_s, assembly.say)
        best = make_goal("best", assembly, objective, trial, metrics)
        stop_goal = make_goal("stop", assembly, objective, trial, metrics)
        watchers = make_watching(assembly, run_dir, stop_goal)
        if assembly.val_sources:
            _check_metric("search_metric", config["search_metric"], assembly, trial)
    if assembly.captures and optimizer.defaults.get("fused"):
        recorder = cuda_graph.CudaRecorder(assembly.device)
    if config["freeze"]:
        rewrap = partial(_rewrapped, assembly, objective, precision)
        times = parameter_groups.thaws_of(config["freeze"])
        freeze = Freeze(parallel.unwrap(model), thaws, times, rewrap)
    parts = Parts(
        plan=TrainPlan(
            epochs=config["epochs"],
            max_steps=config["max_steps"],
            report_every=config["report_every"],
            validate_every=config["validate_every"],
            validate_first=config["validate_first"],
            save_every=saving["every_steps"],
            save_epochs=saving["every_epochs"],
            keep_best=saving["keep_best"],
            clip_norm=config["clip_norm"],
            skip_bad=config["on_nan"] == "skip",
            max_missed=config["max_skips"],
        ),
        model=model,
        objective=objective,
        owned=owned,
        optimizer=optimizer,
        schedule=schedule,
        setter=setter,
        phases=by_phase(phases, optimizer, parallel.unwrap(model)),
        seed=config["seed"],
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
        watching=watchers,
        recorder=recorder,
        sums_records=isinstance(source, LoaderSource) and source.gives_ranks_their_own,
        say=assembly.say,
    )
    if run_dir is not None:
        for split, val_source in assembly.sources.items():
            if split == "train" or not isinstance(val_source, StoreSource):
                continue
            if val_source.read.cut and val_source.context.transform.size is None:
                val_source.sample(NUM_SAMPLES)  # D107 for images of different sizes
        with ExitStack() as stack:  # for passes that change no generator, and compile nothing
            stack.enter_context(kept_generators(assembly.device))
            if config["compile"]:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(precision.autocast())
            _try_smallest(assembly, parts)
            if owned.is_there:
                _try_objective(assembly, parts, owned, refusal)
        parts.switch_to_training()
    if not phases:
        _warm_up(assembly, model, objective, precision)
    return parts


def make_trainer(
    model: nn.Module,
    objective: training.Objective,
    optimizer: torch.optim.Optimizer,
    *,
    train: Iterable[Any],
    val: Iterable[Any] | Mapping[str, Iterable[Any]] | None = None,
    epochs: int,
    fields: Sequence[str] | None = None,
    num_batches: int | None = None,
    schedule: training.Schedule | None = None,
    device: torch.device | None = None,
    seed: int = 0,
    metrics: Mapping[str, Any] | None = None,
    best: watching.Goal | None = None,
    watchers: Mapping[str, training.Watcher] | None = None,
    say: Say = say,
) -> Trainer:
    """Return a Trainer over the batches of a DataLoader. It saves nothing.

    Args:
        model: The model, on ``device``.
        objective: The loss and the metrics.
        optimizer: Over the parameters of ``model``.
        train: A DataLoader or another iterable of batches: dicts, dataclasses or tuples.
        val: The same for validation, or several by name.
        epochs: How long to train.
        fields: The names of a tuple's values.
        num_batches: Batches of an epoch, if ``train`` has no length.
        schedule: Of the learning rate; None: it stays as the optimizer has it.
        device: Where ``model`` is; None: the CPU.
        seed: Decides the order of a DataLoader that shuffles.
        metrics: Metrics of TorchMetrics by name, for the validation.
        best: The metric that says which validation is best; None: the objective says it.
        watchers: Objects by name that look at the training, and may end it, such as ``EarlyStop``.
        say: Prints what is not promised for such batches.

    Raises:
        ConfigError: C232, C234 or C235; DataError: D109, D230, D233 or D235, as ``loader_source``.
    """
    device = device or torch.device("cpu")
    clock, val_clock = make_clock(device, True), make_clock(device, True)

    def loader(data: Iterable[Any], loader_clock: Clock, training: bool) -> PlainLoader:
        order = partial(Order, batch_size=0)
        context = SourceContext(order, NoTransform(), training=training, seed=seed)
        source = loader_source(data, fields, num_batches if training else None, context=context)
        for note in notes_of(source):
            say(f"note: {note}")
        own = LoaderContext(source, device, lambda batch, _: batch, loader_clock)
        return PlainLoader(pin_memory=True, context=own)

    val_loader: Loader | Mapping[str, Loader] | None = None
    if isinstance(val, Mapping):
        val_loader = {name: loader(data, val_clock, training=False) for name, data in val.items()}
    elif val is not None:
        val_loader = loader(val, val_clock, training=False)
    parallel = NoParallel(device=device)
    of_predictions = None
    if metrics:
        from framework.train.torch_metrics import TorchMetrics  # noqa: PLC0415  # an extra

        of_predictions = TorchMetrics(metrics, parallel, say)
    return Trainer(
        Parts(
            plan=TrainPlan(epochs=epochs),
            model=model,
            objective=objective,
            optimizer=optimizer,
            schedule=schedule or Constant(),
            train=loader(train, clock, training=True),
            val=val_loader,
            parallel=parallel,
            precision=FP32(tf32=True, device=device),
            clock=clock,
            val_clock=val_clock,
            metrics=of_predictions,
            best=best,
            watching=watching.Watching(watchers or {}, parallel),
            seed=seed,
            say=say,
        )
    )


def _model(
    assembly: Assembly, objective: training.Objective, precision: Precision, is_whole: bool
) -> tuple[nn.Module, parameter_groups.Thaws, ModelTrial]:
    """Build the model, try it on a few records, freeze layers, and wrap it for its ranks.

    Unless ``is_whole``, the objective calls parts of the model, which stays unwrapped.
    """
    config, parallel, sample = assembly.config, assembly.parallel, assembly.sample
    assembly.notes.clear()
    if targets.is_from_folder(config["model"].get("_target_")):
        built, info = assembly.build("model", output_loading_info=True)
        assembly.notes.append(folder_note(built, info, config))
    else:
        built = assembly.build("model")
    model: nn.Module = built.to(parallel.home)
    if config["channels_last"]:
        model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]  # torch's stub lacks it
    with kept_generators(assembly.device):
        build.try_augment(config, assembly.augment, sample, assembly.allowed)
    try:
        with precision.autocast():
            records = _at_home(assembly, sample)
            trial = build.check_fit(model, objective, records, config, assembly.allowed)
    except ConfigError as error:
        why = auto.wrong_channels(config, assembly.train_source, words_of(error.__cause__ or error))
        raise why or error from error.__cause__
    start_from_data(model, objective, assembly.train_source.sample, partial(_at_home, assembly))
    if assembly.starts_from is not None:
        num_classes = len(assembly.train_source.manifest.classes)
        note = start_from_weights(model, assembly.starts_from, config, num_classes)
        assembly.notes.append(note)
    thaws = freeze_layers(model, config["freeze"])
    recompute.recompute(model, config["recompute"] or [])
    model = parallel.wrap(model) if is_whole else parallel.share(model)
    if config["compile"]:
        for part in [model] if is_whole else model.children():
            _compile(part, config["compile"], assembly.device)
    return model, thaws, trial


def _check_labels(assembly: Assembly, objective: training.Objective) -> None:
    """Check the labels of a store at once, and let the loaders check those of batches. D195."""
    allowed = objective.label_range if isinstance(objective, class_labels.KnowsLabelRange) else None
    if allowed is None:
        return
    for split, source in assembly.sources.items():
        manifest, check = source.manifest, assembly.label_checks[split]
        is_counted = sum(manifest.class_counts) == manifest.num_records
        if is_counted and allowed.field == LABEL and len(manifest.classes) <= allowed.num_classes:
            continue  # packing has checked them
        field = manifest.fields.get(allowed.field)
        is_stored = isinstance(source, StoreSource | DALISource)
        if is_stored and source.store.has_columns and field and is_number(field):
            used = source.order.used()
            check.check(source.store.column(allowed.field)[used], used, allowed)
        else:
            check.allowed = allowed


def _rewrapped(
    assembly: Assembly, objective: training.Objective, precision: Precision, wrapped: nn.Module
) -> nn.Module:
    rewrapped = assembly.parallel.rewrap(wrapped)
    if rewrapped is not wrapped:
        if assembly.config["compile"]:
            _compile(rewrapped, assembly.config["compile"], assembly.device)
        _warm_up(assembly, rewrapped, objective, precision)
    return rewrapped


def _at_home(assembly: Assembly, records: Batch) -> Batch:
    """Return records as ``_augmented`` does, where the model was built."""
    batch = move(_augmented(assembly, records), assembly.parallel.home)
    if assembly.parallel.home != assembly.device:  # where nothing casts as the precision does
        half = (torch.float16, torch.bfloat16)
        batch |= {n: own.float() for n, own in tensors(batch).items() if own.dtype in half}
    return batch


def _augmented(assembly: Assembly, sample: Batch) -> Batch:
    """Return records as the model gets them in validation. ConfigError C118."""
    with build.fits("augment", assembly.config, sample, assembly.allowed):
        return assembly.augmenter(training=False)(move(sample, assembly.device), 0)


def _warm_up(
    assembly: Assembly, model: nn.Module, objective: training.Objective, precision: Precision
) -> None:
    """Take a pass over as many records as this rank's share of a micro-batch, if DDP needs one."""
    # virtual ranks compute without DDP
    if assembly.parallel.world_size == 1 or assembly.train_source.order.virtual_ranks is not None:
        return
    batch = _few(assembly, assembly.train_source, pass_size(assembly))
    with untouched(objective):
        warm_up_ddp(model, objective, precision, batch, assembly.device)


def pass_size(assembly: Assembly) -> int:
    """Return how many records of a whole batch a rank has in one forward pass."""
    order = assembly.train_source.order
    num_ranks = order.virtual_ranks or assembly.parallel.world_size
    return max(1, order.batch_size // (num_ranks * assembly.config["accumulate"]))


def measure_recompute(assembly: Assembly, parts: Parts) -> dict[str, float]:
    """Return what ``recompute`` saves and costs in a pass of ``records`` records, as measured.

    These are few if more would not fit into half of the free memory without it, and none after
    torch's OutOfMemoryError. Nothing is changed. A compiled model runs kernel by kernel. All ranks
    call this together.
    """
    model, device, whole = parts.parallel.unwrap(parts.model), assembly.device, pass_size(assembly)
    cost: dict[str, float] = {}
    before = recompute.BuffersBefore(model)
    parts.switch_to_training()
    with ExitStack() as stack:
        stack.enter_context(kept_generators(device))
        stack.enter_context(untouched(parts.objective))
        stack.enter_context(before)
        if assembly.config["compile"]:
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.callback(parts.optimizer.zero_grad, set_to_none=True)
        stack.enter_context(suppress(torch.OutOfMemoryError))
        for count in sorted({min(whole, NUM_SAMPLES), whole}):
            free = available_memory_bytes()
            if device.type == "cuda":
                free = torch.cuda.mem_get_info(device)[0]
            if cost and cost["kept_bytes_without"] * count / cost["records"] > free / 2:
                break
            batch = _few(assembly, assembly.train_source, count)

            def forward(batch: Batch = batch) -> torch.Tensor:
                with parts.precision.autocast():
                    return parts.objective(model, batch).loss

            cost = {"records": count, **recompute.recompute_cost(model, forward)}
    return cost


def _compile(model: nn.Module, chosen: Any, device: torch.device) -> None:
    variable, *names = ["CC", "gcc", "clang"]
    if device.type == "cpu":
        variable, *names = ["CXX", "g++", "clang++"]
    if not any(map(shutil.which, filter(None, (os.environ.get(variable), *names)))):
        what = f"no compiler here ({' or '.join(names)})"
        fix = f"install {names[0]}, or set compile=false"
        raise ResourceError(105, "compile = true", what, fix)
    build.compile_model(model, chosen)


def _try_smallest(assembly: Assembly, parts: Parts) -> None:
    """Try the model on as few records as a pass of training and of each validation set will have.

    Ready batches of a user's loader are not tried. ConfigError C396.
    """
    config = assembly.config
    num_steps = min(config["max_steps"] or math.inf, config["epochs"] * assembly.train.num_steps)
    for split, source in assembly.sources.items():
        if isinstance(source, LoaderSource):
            continue
        model, order, mode = parts.model, source.order, nullcontext()
        whole, short = order.smallest_batches
        where = f"data.{split}, batch_size = {order.batch_size}"
        of_short = where, f"choose another val_batch_size, for {order.num_places} records"
        if split == "train":
            parts.switch_to_training()
            if num_steps < order.num_steps and order.cuts is None:
                short = 0  # the run ends before
            fix = "set last=drop, or last=wrap" if whole else "set last=wrap"
            of_short = f"last = {order.last}", fix
        else:
            model = parts.parallel.unwrap(model).eval()
            mode = evaluating(parts.objective)
        tried: dict[int, tuple[str, str]] = {}
        if short:
            tried[order.smallest_pass(short)] = of_short
        if whole:
            fix = "raise it, or lower accumulate or the number of ranks"
            tried[order.smallest_pass(whole)] = (where, fix)
        few = {size: words for size, words in tried.items() if size <= NUM_SAMPLES}
        with untouched(parts.objective), mode:
            build.try_smallest(model, parts.objective, partial(_few, assembly, source), few)


def _try_objective(
    assembly: Assembly, parts: Parts, owned: ObjectiveState, refusal: str | None
) -> None:
    """Check what a pass in training mode makes and changes in an objective. ConfigError C392."""
    parts.switch_to_training()
    read = partial(_few, assembly, assembly.train_source)
    with untouched(parts.objective):
        # a step may succeed, unlike these passes without gradients
        with suppress(PacelineError):
            build.try_smallest(parts.model, parts.objective, read, {NUM_SAMPLES: ("", "")})
        first = owned.check_called(parts.parallel.unwrap(parts.model))
        if refusal:
            with suppress(PacelineError):
                build.try_smallest(parts.model, parts.objective, read, {NUM_SAMPLES - 1: ("", "")})
            owned.check_unchanged(first, refusal)


def _few(assembly: Assembly, source: Source, count: int) -> Batch:
    sample = assembly.sample if source is assembly.train_source else source.sample(count)
    return _augmented(assembly, taken(sample, torch.arange(count) % len(sample["index"])))


def open_sinks(
    stack: ExitStack, assembly: Assembly, trainer: Trainer, run_dir: Path
) -> list[training.Sink]:
    """Open the sinks of a run, on rank 0 only. ``stack`` closes them."""
    if not assembly.leads:
        return []
    run = training.RunContext(
        run_dir,
        trainer.total_steps,
        assembly.config["epochs"],
        trainer.progress.step,
        colored(assembly.sample, assembly.train_source.manifest.label_maps),
        assembly.say,
        has_ended=lambda: bool(trainer.ended),
    )
    sinks: list[training.Sink] = []
    for name, block in (assembly.config.get("sink") or {}).items():
        built: training.Sink = build.build(f"sink.{name}", block, assembly.allowed, run=run)
        sink = TolerantSink(built, assembly.say)
        stack.callback(sink.close)
        sinks.append(sink)
    return sinks


def make_goal(
    key: str,
    assembly: Assembly,
    objective: training.Objective,
    trial: ModelTrial,
    metrics: "TorchMetrics | None",
) -> watching.Goal | None:
    """Return the goal of the block ``best`` or ``stop``; None if it names no metric.

    ConfigError C331 for an unknown metric, C338 if nothing tells its direction.
    """
    metric, mode = assembly.config[key]["metric"], assembly.config[key]["mode"]
    if metric is None:
        return None
    where = f"{key}.metric"
    _check_metric(where, metric, assembly, trial)
    if mode != "auto":
        return watching.Goal(metric, mode == "max", where)
    own = metric
    for name in assembly.val_sources:
        own = own.removeprefix(f"{name}.")
    higher = metrics.higher_is_better(own) if metrics is not None else None
    if higher is None and own in ("loss", *trial.losses):
        higher = False
    if higher is None:  # ask the objective, which may not compare it
        low = dict.fromkeys(trial.means, 0.0)
        high = {**low, own: 1.0}
        if objective.better(high, low) != objective.better(low, high):
            higher = objective.better(high, low)
    if higher is None:
        what = f"nothing tells whether a higher {own} is better"
        raise ConfigError(338, f"{key}.mode = auto", what, f"set {key}.mode=max, or min")
    return watching.Goal(metric, higher, where)


def _check_metric(where: str, metric: str, assembly: Assembly, trial: ModelTrial) -> None:
    means = trial.means
    if sets := [name for name in assembly.val_sources if name]:
        means = {f"{name}.{own}": mean for name in sets for own, mean in trial.means.items()}
    if watching.value_of(means, metric) is None:
        raise watching.unknown_metric(where, metric, means)


def make_watching(
    assembly: Assembly, run_dir: Path | None, stop_goal: watching.Goal | None
) -> watching.Watching:
    """Build the watchers of a run: the user's, then those of ``stop``.

    ConfigError C333 for an object that is no watcher, C334 for a state that cannot be saved.
    """
    watchers: dict[str, training.Watcher] = {}
    for name, block in (assembly.config.get("watchers") or {}).items():
        watcher: Any = watching.Idle()
        if assembly.leads:
            watcher = build.build(f"watchers.{name}", block, assembly.allowed)
        if not isinstance(watcher, training.Watcher):
            what = f"makes an object of class {type(watcher).__name__}, which is no Watcher"
            fix = "inherit from framework.Watcher, and write the methods that you need"
            raise ConfigError(333, f"watchers.{name}", what, fix)
        watchers[f"watchers.{name}"] = watcher
    stop = assembly.config["stop"]
    if stop["patience"] is not None:
        own = watching.EarlyStop(stop["patience"], stop_goal, stop["min_delta"])
        watchers[resume.PATIENCE] = own
    if stop["after"] is not None:
        watchers["stop.after"] = watching.TimeBudget(schema.seconds_of("stop.after", stop["after"]))
    return watching.Watching(watchers, assembly.parallel, run_dir, assembly.allowed)
