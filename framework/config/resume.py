"""Compare, key by key, what decides what a saved run and this one learn."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from types import NoneType
from typing import Any

import torch
from torch import Tensor

from framework.config.targets import val_sets, walk
from framework.contracts.records import Manifest
from framework.errors import CheckpointError, ConfigError, did_you_mean
from framework.train.freeze import thaws_of
from framework.train.metrics import Progress
from framework.train.plain_state import LARGEST, foreign_value

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
    return dict(_leaves(chosen))


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
        "classes": list(manifest.classes),
        "digest": manifest.digest or None,
    }


def with_digest_of(digest: str | None) -> Learned:
    """Return what a saved run knows of data with this digest."""
    return {"data.digest": digest and _hash(digest)}


def is_of(saved: Learned, digest: str) -> bool:
    """Return whether a saved run read the data with this digest."""
    return saved.get("data.digest") == _hash(digest)


def _is_made(given: Any) -> bool:
    """Return whether ``data.train`` or ``data.val`` describes an object, and no path or paths."""
    return isinstance(given, dict) and "_target_" in given


def _made(data: Config, split: str, given: Any) -> Config:
    """Return how an object of the user's is made, which nothing else identifies; {} for paths."""
    if not _is_made(given):
        return {}
    return {split: given, **{key: data[key] for key in MADE_KEYS if data.get(key) is not None}}


def _leaves(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of everything that is no block or list."""
    yield "data.classes", _hash("\0".join(config["data"]["classes"]))
    for where, value in _values(config):
        if not where.startswith("data.classes."):
            yield where, value


def _values(config: Config) -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value, or the hash of a text, of everything inside."""
    for where, value in walk(config):
        if not isinstance(value, dict | list):
            yield where, value if isinstance(value, int | float | None) else _hash(str(value))


def _hash(text: str) -> str:
    return sha256(text.encode(errors="surrogateescape")).hexdigest()[:16]


def ending(config: Config) -> Learned:
    """Return what may end a run before its last step, by dotted key."""
    chosen = {name: config.get(name) or {} for name in ("stop", "watchers")}
    return dict(_values(chosen))


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
    return dict(_leaves({"data": contents, "path": where, "limit": config["limit"], **chosen}))


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
        differences = ", ".join(_difference(key, saved, present) for key in refused)
        another = f"begin a new run from its weights: init={run}"
        if any(key.startswith("init.") for key in refused):
            another = "begin a new run, since a resumed one has its weights"
        elif loads():
            another = f"add 'resume.allow=[{','.join(refused)}]'"
        what = f"was saved with other values of {differences}"
        raise CheckpointError(
            105, f"resume = {run}", what, f"leave them as they were, or {another}"
        )


def _difference(key: str, saved: Learned, present: Learned) -> str:
    """Name a key that differs, with both values unless one is a hash."""
    before = saved.get(key, "nothing")
    now = present.get(key, "nothing")
    is_hash = [isinstance(value, str) and value != "nothing" for value in (before, now)]
    return key if any(is_hash) else f"{key} ({before}, now {now})"


def _check_means(state: Mapping[str, Any]) -> None:
    for part in ("best", "val"):
        for name, mean in state[part].items():
            if type(mean) not in (int, float):
                raise ValueError(f"{part}.{name} is no number")
    # a run that was resumed with other metrics has more or fewer of them now
    if state["best"] and not state["best"].keys() & state["val"].keys():
        raise ValueError("best and val have no mean in common")


def _check_pending(pending: Mapping[str, Any]) -> None:
    """Check the losses since the last report."""
    for values in pending["ranks"]:
        if values.dtype != torch.float64 or values.ndim != 1:
            raise TypeError("pending.ranks are not numbers")
    for name in (*pending["sums"], *pending["arrays"], *pending["totals"]):
        if type(name) is not str:
            raise TypeError("pending has a name that is no text")
    for name, total in pending["totals"].items():
        if not isinstance(total, Tensor):
            raise TypeError(f"pending.totals.{name} is no tensor")


def _check_progress(progress: Mapping[str, Any]) -> None:
    for name in asdict(Progress()):
        count = progress[name]
        if type(count) is not int or not 0 <= count < LARGEST:
            raise ValueError(f"progress.{name} is {count!r}")
        if count > progress["step"]:
            raise ValueError(f"progress.{name} is more than the steps taken")


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
    _check_progress(state["progress"])
    _check_means(state)
    _check_pending(state["pending"])
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
