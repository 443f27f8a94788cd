"""Compare, key by key, what decides what a saved run and this one learn."""

import math
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from hashlib import sha256
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from framework.config.build import last_line
from framework.config.targets import val_sets, walk
from framework.contracts.records import Manifest
from framework.errors import CheckpointError, ConfigError, PacelineError, did_you_mean
from framework.train.freeze import thaws_of
from framework.train.metrics import Progress
from framework.train.plain_state import LARGEST, foreign_value
from framework.train.trainer import Trainer

if TYPE_CHECKING:
    from framework.config.assemble import Assembly

Config = dict[str, Any]
Learned = dict[str, Any]  # dotted key: a number, None, or the hash of a text

PARTS = ("model", "objective", "optim", "schedule", "precision", "augment", "transform", "order")
VIRTUAL = ("virtual_ranks", "num_threads")  # keys of parallel=virtual that change its bits
MIXING = ("weights", "temperature")  # keys of data=mixture
# Of data, beside an object of the user's.
MADE_KEYS = ("fields", "ragged", "collate", "num_batches")
SELECTING = ("select", "fold", "folds", "fold_by")
AVERAGING = ("ema_decay", "ema_every", "ema_ramp", "ema_lookahead")
KEYS = ("seed", "shuffle", "last", "limit", "clip_norm", *AVERAGING, *SELECTING)
PATIENCE = "stop.patience"  # the watcher that ends a run without a better validation
KINDS = {  # of the parts of a state
    **dict.fromkeys(("model", "optimizer", "precision", "progress", "order"), dict),
    **dict.fromkeys(("best", "val", "pending", "watching", "learned", "ends"), dict),
    **dict.fromkeys(("average", "schedule", "validation"), (dict, NoneType)),
    "generators": list,
    "trained_s": float,
    "ended": str,
    "init": (str, NoneType),
}
FOLLOWS = "framework.schedule.plateau.Plateau"  # a schedule whose rates validations decide


def learned(config: Config, batch_size: int, manifest: Manifest) -> Learned:
    """Return all that decides what is learned, by dotted key.

    How the work is cut and carried (ranks, workers, loader, store, device) does not decide it, and
    neither does the number of steps. Texts are hashed, because they may come from the environment
    and be secret.

    Args:
        config: Plain values, resolved.
        batch_size: Records per optimizer step over all ranks.
        manifest: Describes the training data.
    """
    given = config["data"]
    chosen = {name: config[name] for name in (*PARTS, *KEYS)} | {
        "batch_size": batch_size,
        "data": _contents(manifest) | _made(given, "train", given["train"]),
        "mixture": {key: given[key] for key in MIXING if key in given},
        "parallel": {key: config["parallel"][key] for key in VIRTUAL if key in config["parallel"]},
    }
    if config["freeze"]:
        # null would be no difference to a key that is not there
        thaws = thaws_of(config["freeze"]).items()
        chosen["freeze"] = {name: "never" if step is None else step for name, step in thaws}
    if config["init"]["weights"] is not None:
        chosen["init"] = config["init"]
    return _values(chosen)


def followed(config: Config, validates: Learned | None) -> Learned:
    """Return what else decides what is learned if the learning rate follows validations."""
    if config["schedule"].get("_target_") != FOLLOWS:
        return {}
    values = {f"validation.{key}": value for key, value in (validates or {}).items()}
    return {"validate_every": config["validate_every"], **values}


def _contents(manifest: Manifest) -> Config:
    """Return what tells one data set from another."""
    return {
        "records": manifest.num_records,
        "classes": "\0".join(manifest.classes),
        "digest": manifest.digest or None,
    }


def _is_made(given: Any) -> bool:
    """Return whether ``data.train`` or ``data.val`` describes an object, and no path or paths."""
    return isinstance(given, dict) and "_target_" in given


def _made(data: Config, split: str, given: Any) -> Config:
    """Return how an object of the user's is made, which nothing else identifies; {} for paths."""
    if not _is_made(given):
        return {}
    return {split: given, **{key: data[key] for key in MADE_KEYS if data.get(key) is not None}}


def _values(config: Config) -> Learned:
    """Return the value, or the hash of a text, of everything inside by its dotted name."""
    return {
        where: value if isinstance(value, int | float | None) else _hash(str(value))
        for where, value in walk(config)
        if not isinstance(value, dict | list)
    }


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def ending(config: Config) -> Learned:
    """Return what may end a run before its last step, by dotted key."""
    return _values({name: config.get(name) or {} for name in ("stop", "watchers")})


def validation_data(manifests: Mapping[str, Manifest], config: Config) -> Learned | None:
    """Return what tells the validation of one run from that of another; None without any.

    Args:
        manifests: Describe the validation sets by name, as ``val_sets`` does.
        config: Plain values.
    """
    given = val_sets(config["data"])
    if not manifests:
        return None
    sets = {name: _of_one_set(manifests[name], given[name], config) for name in manifests}
    if sets.keys() == {""}:
        return sets[""]
    return {f"{name}.{key}": value for name in sets for key, value in sets[name].items()}


def _of_one_set(manifest: Manifest, val: Any, config: Config) -> Learned:
    """Return what tells one validation set from another.

    Args:
        manifest: Describes the set.
        val: What ``data.val`` says of it. Paths count only for data without a digest.
        config: Plain values.
    """
    data = config["data"]
    where = None
    if not manifest.digest and not _is_made(val):
        where = os.path.abspath(val) if isinstance(val, str) else str(val)
    contents = _contents(manifest) | _made(data, "val", val)
    chosen = {key: config[key] for key in SELECTING if config[key] is not None}
    if data.get("val_transform") is not None:
        chosen["transform"] = data["val_transform"]
    return _values({"data": contents, "path": where, "limit": config["limit"], **chosen})


def check_same(
    run: str,
    saved: Learned,
    present: Learned,
    allow: Sequence[str],
    loads: Callable[[], bool] = lambda: True,
) -> None:
    """Check that a saved run and this one learn the same.

    Args:
        run: What ``resume`` names, for messages.
        saved: All that decided what the saved run learned.
        present: The same of this run.
        allow: Keys, or the blocks around them, that may differ.
        loads: Returns whether the state loads in spite of differences.

    Raises:
        CheckpointError: K105 with every key that differs and is not allowed. It advises
            ``resume.allow`` only if the state loads.
        ConfigError: C102 for a name in ``allow`` that nothing has.
    """
    known = {*PARTS, *KEYS, *(key.split(".")[0] for key in (*saved, *present)), "parallel"}
    for name in allow:
        if name.split(".")[0] not in known:
            hint = did_you_mean(name, sorted(known))
            what = f"nothing that is learned has this name{hint}"
            raise ConfigError(102, f"resume.allow = [{name}]", what, "correct or remove it")
    keys = [key for key in dict.fromkeys([*saved, *present]) if saved.get(key) != present.get(key)]
    allowed = tuple(f"{name}." for name in allow)
    refused = [key for key in keys if not f"{key}.".startswith(allowed)]
    # contents without a digest, such as a Dataset, cannot be compared
    if "data.digest" in refused and None in (saved.get("data.digest"), present.get("data.digest")):
        refused.remove("data.digest")
    if refused:
        differences: list[str] = []
        for key in refused:
            values = saved.get(key, "nothing"), present.get(key, "nothing")
            is_hash = any(isinstance(value, str) and value != "nothing" for value in values)
            differences.append(key if is_hash else f"{key} ({values[0]}, now {values[1]})")
        another = f"begin a new run from its weights: init={run}"
        if any(key.startswith("init.") for key in refused):
            another = "begin a new run, since a resumed one has its weights"
        elif loads():
            another = f"add 'resume.allow=[{','.join(refused)}]'"
        what = f"was saved with other values of {', '.join(differences)}"
        raise CheckpointError(
            105, f"resume = {run}", what, f"leave them as they were, or {another}"
        )


def check_form(state: Mapping[str, Any]) -> None:
    """Check that a state has the form that our runs save, whatever its checksum says.

    Raises:
        ValueError: A count is impossible, or means do not fit each other.
        TypeError: A part is of another kind, or the optimizer's state holds more than tensors and
            plain values.
        KeyError: A part is missing.
    """
    for name, kinds in KINDS.items():
        if not isinstance(state[name], kinds):
            raise TypeError(f"{name} is {type(state[name]).__name__}")
    progress, pending = state["progress"], state["pending"]
    for name in asdict(Progress()):
        count = progress[name]
        if type(count) is not int or not 0 <= count < LARGEST or count > progress["step"]:
            raise ValueError(f"progress.{name} is {count!r} after {progress['step']!r} steps")
    for part in ("best", "val"):
        for name, mean in state[part].items():
            if type(mean) not in (int, float):
                raise ValueError(f"{part}.{name} is no number")
    # a run that was resumed with other metrics has more or fewer of them now
    if state["best"] and not state["best"].keys() & state["val"].keys():
        raise ValueError("best and val have no mean in common")
    if any(values.dtype != torch.float64 or values.ndim != 1 for values in pending["ranks"]):
        raise TypeError("pending.ranks are not numbers")
    if any(type(name) is not str for key in ("sums", "arrays", "totals") for name in pending[key]):
        raise TypeError("pending has a name that is no text")
    if not all(isinstance(total, Tensor) for total in pending["totals"].values()):
        raise TypeError("pending.totals are no tensors")
    if not 0 <= state["trained_s"] < math.inf:
        raise TypeError("trained_s is no time")
    if any(own.dtype != torch.uint8 or own.ndim != 1 for own in state["generators"]):
        raise TypeError("generators are not bytes")
    if type(state["watching"]["reason"]) is not str:
        raise TypeError("watching.reason is no text")
    for name, remembered in state["watching"]["watchers"].items():
        if type(remembered) is not dict:
            raise TypeError(f"what {name} remembers is no dict")
    foreign = foreign_value({"state": state["optimizer"]["state"]})
    if foreign:
        raise TypeError(foreign)


def restore(trainer: Trainer, assembly: "Assembly", state: dict[str, Any]) -> bool:
    """Load ``state`` into ``trainer``.

    Returns:
        Whether the validation data differs from the saved run's. Its figures are dropped then,
        because figures of different data cannot be compared.

    Raises:
        CheckpointError: K103 if the state does not fit, K104 if an epoch under way was cut
            otherwise, K105 if the saved run learns something else.
    """
    resume = assembly.config["resume"]
    with fits_run(resume["run"]):
        return _restored(trainer, assembly, state)


@contextmanager
def fits_run(run: str) -> Generator[None]:
    """Turn any exception of a part that gets something else from a state into K103."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:
        what = f"its state does not fit this configuration ({last_line(error)})"
        fix = (
            "resume with the model and optimizer it was saved with, "
            f"or begin a new run from its weights: init={run}"
        )
        raise CheckpointError(103, f"resume = {run}", what, fix) from error


def _restored(trainer: Trainer, assembly: "Assembly", state: dict[str, Any]) -> bool:
    check_form(state)
    resume = assembly.config["resume"]
    anew = state["validation"] != assembly.validates
    if anew:
        # what the watchers remember, but not the best metric on other data
        watching = dict(state["watching"])
        watching["watchers"] = {k: v for k, v in watching["watchers"].items() if k != PATIENCE}
        state = {**state, "best": {}, "val": {}, "watching": watching}
    if state["ends"] != assembly.ends:  # what ends a run has been changed, maybe to go on
        state = {**state, "ended": "", "watching": {**state["watching"], "reason": ""}}

    loads = partial(_loads, trainer, assembly, state)
    check_same(resume["run"], state["learned"], assembly.learns, resume["allow"], loads)
    _load(trainer, state, resume["run"])
    if anew:
        trainer.stepper.forget_best()
    return anew


def _loads(trainer: Trainer, assembly: "Assembly", state: dict[str, Any]) -> bool:
    """Return whether the state can be loaded. The trainer is of no use afterwards."""
    key = "optim._target_"
    if state["learned"].get(key) != assembly.learns.get(key):
        return False  # torch would load another optimizer's state, and fail in the first step
    try:
        _load(trainer, state, assembly.config["resume"]["run"])
    except Exception:  # noqa: BLE001  # of any part that gets what another one has saved
        return False
    return True


def _load(trainer: Trainer, state: dict[str, Any], run: str) -> None:
    identity = trainer.parts.train.identity
    if state["progress"]["epoch_step"] and _places(state["order"]) != _places(identity):
        what = f"was saved inside an epoch of {state['order']}, this one has {identity}"
        fix = "change them when the epoch has ended"
        raise CheckpointError(104, f"resume = {run}", what, fix)
    trainer.load_state_dict(state)


def _places(identity: dict[str, int]) -> dict[str, int]:
    """Return what decides the records of each batch but the last, which ``last`` decides, too."""
    places = identity.get("places", identity["records"])
    return {**identity, "records": places, "places": places}
