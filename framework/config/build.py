"""Build one part from its configuration, and try parts on a few records before the first step.

Hydra's ``instantiate`` would resolve what is left of a reference in a text once more, and call what
``${oc.create:...}`` describes there, which nothing has checked.
"""

import importlib
import inspect
import os
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from framework.config import schema, targets
from framework.config.targets import Config
from framework.contracts.batch import Batch, described, move, num_records, tensors
from framework.contracts.class_labels import raise_if_label
from framework.contracts.data import Augment
from framework.contracts.parallel import Parallel
from framework.contracts.training import Objective, Schedule
from framework.errors import ConfigError, Say, words_of
from framework.order.draws import DeviceDraws
from framework.schedule.constant import Constant
from framework.schedule.torch_schedule import TorchSchedule
from framework.system.user_code import needed, pip_install, raise_if_user_error
from framework.train.metrics import PassPlace, PassResults, check_outcome
from framework.train.objective_state import evaluating

if TYPE_CHECKING:
    from framework.train.torch_metrics import TorchMetrics

PLAIN = {str, int, float, bool, NoneType}
OPTIMIZER = "optimizer"  # the argument that tells a scheduler of torch
EXTRAS = {"timm": "timm", "torchvision": "timm", "transformers": "huggingface"}
# what torch and Python raise when shapes, types or names do not fit
MISFITS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, UserWarning)
NUM_SAMPLES = 8  # records for a trial of the model before the first step, and for pictures
# torch's warning if a loss compares each record with others
BROADCAST = "Using a target size"


def build(where: str, block: Config, allowed: Sequence[str], **runtime: Any) -> Any:
    """Build the part that ``block`` describes, after those inside it.

    ``where`` names the block in messages, ``allowed`` are prefixes of the user's packages, and
    ``runtime`` arguments that come from the run.

    Raises:
        ConfigError: C101, C105, C106, C113.
        ResourceError: R104 for a lack of memory.
        UserCodeError: U100.
    """
    with _named_errors(where, block, allowed):
        return _checked(where, block, allowed, runtime)()


def maker(where: str, block: Config, allowed: Sequence[str], **examples: Any) -> partial[Any]:
    """Return what makes the part that ``block`` describes, checked with examples of arguments.

    It can be pickled.
    """
    with _named_errors(where, block, allowed):
        whole = _checked(where, block, allowed, examples)
    own = {key: value for key, value in whole.keywords.items() if key not in examples}
    return partial(whole.func, *whole.args, **own)


def _checked(where: str, block: Config, allowed: Sequence[str], runtime: Config) -> partial[Any]:
    made = _made(where, {**block, "_partial_": True}, allowed)
    if both := sorted(made.keywords.keys() & runtime.keys()):
        what = "comes from the run, not from the configuration"
        raise ConfigError(106, f"{where}.{both[0]}", what, "remove it")
    whole = partial(made, **runtime)
    try:
        signature = inspect.signature(whole.func)
    except (ValueError, TypeError):  # built in C
        return whole
    try:
        bound = signature.bind(*whole.args, **whole.keywords)
    except TypeError as error:
        what = f"{whole.func.__qualname__}: {error}"
        raise ConfigError(106, where, what, "correct its keys") from error
    for name, value in bound.arguments.items():
        # only plain types are compared: the part itself checks all others
        rule = schema.Rule(signature.parameters[name].annotation)
        is_plain = rule.kind is not NoneType and set(rule.kinds) <= PLAIN
        if is_plain and not rule.is_kind(value):
            raise rule.error(f"{where}.{name}", value)
    return whole


@contextmanager
def _named_errors(where: str, block: Config, allowed: Sequence[str]) -> Generator[None]:
    for place, inner in targets.targets(block, where):
        targets.check_name(place, inner["_target_"], allowed)
        _check_resolved(place, inner["_target_"], allowed)
    try:
        yield
    except Exception as error:
        raise_if_user_error(error, allowed, fix=f"correct it, or the arguments of {where}")
        if isinstance(error, TypeError | ValueError | RuntimeError):
            what = words_of(error)
            fix = "correct its arguments"
            if "Nesterov" in what:
                fix = f"add {where}.nesterov=false"
            raise ConfigError(113, f"{where} = {targets.data_name(block)}", what, fix) from error
        raise


def _made(where: str, node: Any, allowed: Sequence[str]) -> Any:
    """Return a value in which every block with a ``_target_`` is what the target makes of it."""
    if isinstance(node, list):
        return [_made(f"{where}.{key}", item, allowed) for key, item in enumerate(node)]
    if not isinstance(node, dict):
        return node
    block = targets.secured(where, node, allowed)
    values = {key: _made(f"{where}.{key}", item, allowed) for key, item in block.items()}
    if "_target_" not in block:
        return values
    keywords = {key: value for key, value in values.items() if key not in targets.SPECIAL}
    call = partial(_resolve(block["_target_"]), *(values.get("_args_") or ()), **keywords)
    return call if block.get("_partial_") else call()


def _check_resolved(where: str, target: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError C105 for a target that is missing, or another's, as ``mypkg.os.system``."""
    place = f"{where}._target_ = {target}"
    package = target.partition(".")[0]
    packages = tuple(allowed)
    fix = "correct the name"
    is_foreign = targets.is_foreign(target)
    if is_foreign:
        packages += (f"{package}.",)
        fix = f"{pip_install(EXTRAS[package])}, or correct the name"
    try:
        # keep it off the network, and quiet
        if is_foreign and package == "transformers":
            os.environ.setdefault("HF_HUB_OFFLINE", "1")
            from transformers.utils import logging  # noqa: PLC0415

            logging.set_verbosity_error()
            logging.disable_progress_bar()
        part = _resolve(target)
    except Exception as error:
        raise_if_user_error(error, allowed, fix=f"correct it: {place} cannot be loaded")
        # a torchvision of another torch raises RuntimeError
        if isinstance(error, ImportError | AttributeError | RuntimeError):
            raise ConfigError(105, place, f"cannot be found ({words_of(error)})", fix) from error
        raise
    home = f"{getattr(part, '__module__', '')}.{getattr(part, '__qualname__', '')}"
    if target.startswith(packages) and not (callable(part) and home.startswith(packages)):
        what = f"is really {home}, which is not in a package that you allowed"
        raise ConfigError(105, place, what, "name the module that defines it")


def _resolve(target: str) -> Any:
    parts = target.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            part: Any = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                continue
            raise
        for attribute in parts[cut:]:
            part = getattr(part, attribute)
        return part
    raise ImportError(f"no module named {parts[0]!r}")


def takes_optimizer(block: Any) -> bool:
    return isinstance(block, dict) and OPTIMIZER in targets.parameters_of(block.get("_target_"))


def build_schedule(
    block: Config, allowed: Sequence[str], optimizer: Optimizer, warmup_steps: float | None
) -> tuple[Schedule, TorchSchedule | None]:
    """Return the schedule, and the scheduler of torch that sets the rates in its place, if any.

    The optimizer has the rates of the start, and ``warmup_steps`` are scaled.
    """
    if takes_optimizer(block):
        own = {key: value for key, value in block.items() if key != "per"}
        make = partial(_scheduler, "schedule", own, allowed)
        return Constant(), TorchSchedule(make, optimizer, block.get("per", "step"), own["_target_"])
    own = {key: value for key, value in block.items() if key != "warmup_epochs"}
    if "warmup_steps" in own:
        own["warmup_steps"] = int(warmup_steps or 0)
    return build("schedule", own, allowed), None


def _scheduler(where: str, block: Config, allowed: Sequence[str], optimizer: Optimizer) -> Any:
    """Build a scheduler, after those in its lists, as SequentialLR and ChainedScheduler have."""
    inner: Config = {OPTIMIZER: optimizer}
    for key, value in block.items():
        if isinstance(value, list) and value and all(map(takes_optimizer, value)):
            inner[key] = [
                _scheduler(f"{where}.{key}.{number}", item, allowed, optimizer)
                for number, item in enumerate(value)
            ]
    outer = {key: value for key, value in block.items() if key not in inner}
    return build(where, outer, allowed, **inner)


def try_augment(config: Config, augment: Augment, sample: Batch, packages: Sequence[str]) -> None:
    """Augment a few records on the host as in training. ConfigError C118, UserCodeError U100."""
    if augment.num_draws:
        batch = move(sample, torch.device("cpu"))
        own = DeviceDraws(config["seed"], augment.num_draws)
        draws = own.by_operators(batch["index"], *own.keys(0))
        with fits("augment", config, sample, packages):
            augment(batch, draws)


@contextmanager
def fits(name: str, config: Config, batch: Batch, packages: Sequence[str]) -> Generator[None]:
    """Turn an exception of the part ``name`` into ConfigError C118 or UserCodeError U100."""
    try:
        yield
    except Exception as error:
        objective = config.get("objective") or {}
        options = [f"objective.{key}" for key in ("ignore_index", "ignore") if key in objective]
        raise_if_label(error, batch, "data.train", *options[:1])
        fix = f"correct it, or set the {name}'s keys to what the data is"
        raise_if_user_error(error, packages, described(batch), fix)
        if not isinstance(error, MISFITS):
            raise
        why = f"{type(error).__name__}: {words_of(error)}"
        if isinstance(error, KeyError):
            why = f"there is no {words_of(error)}"
        fix = "set its keys to what the data is"
        if name == "model":
            keys = "the model's keys (in_channels, num_classes, ...)"
            fix = f"set {keys} or the objective's input and target to what the data is"
            if "tuple" in why:
                fix = "a loss of your own in objective=loss takes all that the model returns"
            if "Half" in why or "BFloat16" in why:
                fix = "choose precision=amp, or leave out augment.dtype"
            if "expected target dtype" in why or "expected scalar type Long" in why:
                fix = "for a target of numbers choose objective=regress; classes are whole numbers"
            if "Byte" in why and any(own.dtype == torch.uint8 for own in tensors(batch).values()):
                fix = "pixels are still bytes: augment=normalize, or such, makes floats of them"
        what = f"does not fit the data's {described(batch)} ({why})"
        raise ConfigError(118, f"{name} = {config[name]['_target_']}", what, fix) from error


class ModelTrial(NamedTuple):
    means: dict[str, float]  # loss and metrics by name
    predictions: tuple[Tensor, Tensor] | None
    losses: tuple[str, ...] = ()  # the names in ``means`` of the parts of the loss


@torch.no_grad()
def check_fit(
    model: nn.Module, objective: Objective, batch: Batch, config: Config, packages: Sequence[str]
) -> ModelTrial:
    """Run the model on a few records, as in validation. Return what its validation would give.

    ConfigError C118 if the model does not fit the data, C220 for an outcome of another form.
    UserCodeError U100.
    """
    model.eval()
    with fits("model", config, batch, packages), evaluating(objective), warnings.catch_warnings():
        warnings.filterwarnings("error", BROADCAST)
        outcome = objective(model, batch)
    pass_results = PassResults(objective)
    with fits("objective", config, batch, packages):
        check_outcome(outcome, num_records(batch))  # it may be no Outcome at all
        predictions = outcome.predictions
        pass_results.add(outcome, num_records(batch), 1.0, PassPlace(0, None))
        results = pass_results.results(lambda sums: sums)
    model.train()
    return ModelTrial(results.means, predictions, tuple(outcome.losses))


@torch.no_grad()
def try_smallest(
    model: nn.Module,
    objective: Objective,
    read: Callable[[int], Batch],
    sizes: Mapping[int, tuple[str, str]],
) -> None:
    """Try the model, in the mode in which it is, on batches of a few records. Restore its buffers.

    All ranks call this together. ``read`` returns a batch of so many records. ``sizes`` has the
    option that leads to each number of records, and what to do. ConfigError C396 for a model that
    takes more records, but not so few.
    """
    kept = [
        (module, name, own, own.clone())
        for module in model.modules()
        for name, own in module.named_buffers(recurse=False)
    ]
    try:
        for size, (where, fix) in sizes.items():
            try:
                objective(model, read(size))
            except MISFITS as error:
                try:
                    objective(model, read(NUM_SAMPLES))
                except MISFITS:
                    continue  # not for the size, but because it wants a gradient, say
                records = "1 record" if size == 1 else f"{size} records"
                what = f"leads to passes over {records}, which the model does not take"
                why = f"{what} ({type(error).__name__}: {words_of(error)})"
                raise ConfigError(396, where, why, fix) from error
    finally:
        for module, name, own, value in kept:
            setattr(module, name, own.copy_(value))  # a model may have replaced it


def make_metrics(
    config: Config, allowed: Sequence[str], parallel: Parallel, say: Say, classes: Sequence[str]
) -> "TorchMetrics | None":
    """Build the metrics that the configuration names; None without any. R112, C332."""
    blocks = config.get("metrics") or {}
    if not blocks:
        return None
    needed("torchmetrics", "metrics")
    from framework.train.torch_metrics import TorchMetrics  # noqa: PLC0415  # an extra

    built = {name: build(f"metrics.{name}", blocks[name], allowed) for name in blocks}
    return TorchMetrics(built, parallel, say, classes)


def try_metrics(metrics: "TorchMetrics", trial: ModelTrial) -> ModelTrial:
    """Return the trial with the metrics of its predictions. ConfigError C332 if they do not fit."""
    means = metrics.tried(trial.predictions)
    if both := sorted({*means, *metrics.names} & {*trial.means, "step"}):
        what = "is the name of a metric that the objective has already"
        raise ConfigError(332, f"metrics.{both[0]}", what, "rename or remove it")
    return trial._replace(means={**trial.means, **means})


def compile_model(model: nn.Module, chosen: Any) -> None:
    """Let torch compile a model as the option ``compile`` says, which is a mode, a block or true.

    Shapes are static unless the block has ``dynamic``. ConfigError C387 for an option of Inductor
    that this torch does not have, or for a value that it refuses.
    """
    block: Config = chosen if isinstance(chosen, dict) else {}
    if isinstance(chosen, str):
        block = {"mode": chosen}
    try:
        model.compile(**{"dynamic": False, **block})
    except RuntimeError as error:
        what = f"torch refuses it ({words_of(error).partition(', known')[0]})"
        raise ConfigError(387, f"compile = {chosen}"[:200], what, "correct or remove it") from error
