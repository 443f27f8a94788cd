"""Checks before the first step: a few records are tried on the parts, and all ranks agree."""

import json
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import framework
from framework.config.targets import Config
from framework.contracts.batch import Batch, described, move, num_records, tensors
from framework.contracts.class_labels import raise_if_label
from framework.contracts.data import Augment
from framework.contracts.parallel import Parallel
from framework.contracts.training import Objective
from framework.errors import ConfigError, DistributedError, words_of
from framework.order.draws import device_key, keyed_draws
from framework.system.user_code import raise_if_user_error
from framework.train.metrics import PassPlace, PassResults, check_outcome
from framework.train.objective_state import evaluating

Facts = Mapping[str, float | str | None]
# what torch and Python raise when shapes, types or names do not fit
MISFITS = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, UserWarning)
NUM_SAMPLES = 8  # records for a trial of the model before the first step, and for pictures
# torch's warning if a loss compares each record with others, which learns nonsense
BROADCAST = "Using a target size"


@cache
def code_digest() -> str:
    """Return a digest of this package's source, whatever its version says."""
    digest = sha256()
    root = Path(framework.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def gathered(parallel: Parallel, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the plain values of all ranks in rank order. All ranks call it together."""
    mine = torch.frombuffer(bytearray(json.dumps(dict(values)).encode()), dtype=torch.uint8)
    return [json.loads(bytes(data.tolist())) for data in parallel.gather(mine)]


def check_agreement(parallel: Parallel, facts: Facts) -> None:
    """Compare the facts of all ranks with rank 0's. All ranks call it together.

    DistributedError P105, on every rank, with the rank and the facts that differ.
    """
    if parallel.world_size == 1:
        return
    leader, *others = gathered(parallel, facts)
    for rank, other in enumerate(others, 1):
        differences = [
            f"{key} ({other.get(key)}, rank 0 has {leader.get(key)})"
            for key in dict.fromkeys([*leader, *other])
            if leader.get(key) != other.get(key)
        ]
        if differences:
            what = f"is about to do something else: {', '.join(differences)}"
            fix = "give every rank the same code, packages and copy of the data"
            raise DistributedError(105, f"rank {rank}", what, fix)


def try_augment(config: Config, augment: Augment, sample: Batch, packages: Sequence[str]) -> None:
    """Augment a few records on the host as in training. ConfigError C118, UserCodeError U100."""
    if augment.num_draws:
        batch = move(sample, torch.device("cpu"))
        draws = keyed_draws(batch["index"], device_key(config["seed"], 0), augment.num_draws)
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
            fix = (
                "set the model's keys (in_channels, num_classes, ...) "
                "or the objective's input and target to what the data is"
            )
            if "Half" in why or "BFloat16" in why:
                fix = "choose precision=amp, or leave out augment.dtype"
            if "expected target dtype" in why or "expected scalar type Long" in why:
                fix = "for a target of numbers choose objective=regress; classes are whole numbers"
            if "Byte" in why and any(own.dtype == torch.uint8 for own in tensors(batch).values()):
                fix = "pixels are still bytes: augment=normalize, or such, makes floats of them"
        what = f"does not fit the data's {described(batch)} ({why})"
        raise ConfigError(118, f"{name} = {config[name]['_target_']}", what, fix) from error


class ModelTrial(NamedTuple):
    """What a validation of a few records gives."""

    means: dict[str, float]  # loss and metrics by name
    predictions: tuple[Tensor, Tensor] | None
    losses: tuple[str, ...] = ()  # the names in ``means`` of the parts of the loss


@torch.no_grad()
def check_fit(
    model: nn.Module,
    objective: Objective,
    batch: Batch,
    config: Config,
    packages: Sequence[str] = (),
) -> ModelTrial:
    """Run the model on a few records, as in validation. Return what its validation would give.

    Raises:
        ConfigError: C118 if the model does not fit the data, C220 for an outcome of another form.
        UserCodeError: U100 for an exception in the user's own code.
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

    Args:
        model: Wrapped for its ranks, all of which call this together.
        objective: What is learned.
        read: Returns a batch of so many records, as the model gets them.
        sizes: For each number of records, the option that leads to it, and what to do.

    Raises:
        ConfigError: C396 for a model that takes more records, but not so few.
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
