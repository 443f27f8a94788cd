"""Whether a saved run and this one learn the same: what decides it, compared key by key."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

from torch import Tensor

from framework.config.targets import did_you_mean
from framework.contracts.records import Manifest
from framework.errors import CheckpointError, ConfigError
from framework.train.lr_scaling import KEYS as SCALING_KEYS

Config = dict[str, Any]
Learned = dict[str, Any]  # dotted key: a number, None, or the hash of a text

PARTS = ("model", "objective", "optim", "schedule", "precision", "augment", "transform", "order")
VIRTUAL = ("virtual_ranks", "num_threads")  # of parallel=virtual, whose bits depend on them
KEYS = ("seed", "shuffle", "limit", "clip_norm", "ema_decay")


def learned(config: Config, batch_size: int, manifest: Manifest) -> Learned:
    """All that decides what is learned. Not in it: how the work is cut and carried (ranks, workers, loader, store, device), and for how long.

    Texts are hashed: they may come from the environment, and be secret. ``batch_size``: over all ranks; ``manifest``: of the training data.
    """
    chosen = {**{name: config[name] for name in PARTS}, **{name: config[name] for name in KEYS}}
    chosen |= _later(config)
    data = {
        "records": manifest.num_records,
        "classes": list(manifest.classes),
        "digest": manifest.digest or None,
    }
    return dict(_leaves({**chosen, "batch_size": batch_size, "data": data}))


def _later(config: Config) -> Config:
    """Keys that older states lack, where they are not what those states had."""
    optim = config["optim"]
    if (optim.get("scaling") or "none") == "none":
        optim = {key: value for key, value in optim.items() if key not in SCALING_KEYS}
    found = (
        {"optim": optim} if config["last"] == "short" else {"optim": optim, "last": config["last"]}
    )
    virtual = {key: config["parallel"][key] for key in VIRTUAL if key in config["parallel"]}
    return {**found, "parallel": virtual} if virtual else found


def _leaves(node: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    children = (
        node.items()
        if isinstance(node, Mapping)
        else enumerate(node)
        if isinstance(node, list | tuple)
        else None
    )
    if children is None:
        yield (
            where,
            node
            if isinstance(node, int | float | None)
            else sha256(str(node).encode(errors="surrogateescape")).hexdigest()[:16],
        )
    elif where == "data.classes":
        yield where, sha256("\0".join(node).encode(errors="surrogateescape")).hexdigest()[:16]
    else:
        for name, value in children:
            yield from _leaves(value, f"{where}.{name}" if where else str(name))


def validation_data(
    manifest: Manifest | None, path: str | None, limit: int | None
) -> Learned | None:
    """What tells one validation set from another; None without one. ``path`` counts only for data that knows no digest."""
    if manifest is None:
        return None
    facts: Config = {
        "records": manifest.num_records,
        "classes": list(manifest.classes),
        "digest": manifest.digest or None,
    }
    where = None if manifest.digest or path is None else os.path.abspath(path)
    return dict(_leaves({"data": facts, "path": where, "limit": limit}))


def check_same(
    run: str,
    saved: Learned,
    present: Learned,
    allow: Sequence[str],
    loads: Callable[[], bool] = lambda: True,
) -> None:
    """Check that a saved run and this one learn the same.

    Args:
        run: what ``resume`` names, for messages.
        saved: what decided what the saved run learned.
        present: the same of this run.
        allow: keys, or what they are a part of, that may differ.
        loads: whether the state would load in spite of the differences; asked only if there are some.

    Raises:
        CheckpointError: K105 with every key that differs and is not allowed. It advises ``resume.allow`` only if the state loads.
        ConfigError: C102 for a name in ``allow`` that nothing has.
    """
    known = {*PARTS, *KEYS, *(key.split(".")[0] for key in (*saved, *present)), "last", "parallel"}
    for one in allow:
        if one.split(".")[0] not in known:
            hint = did_you_mean(one, sorted(known))
            raise ConfigError(
                102,
                f"resume.allow = [{one}]",
                f"nothing that is learned has this name{hint}",
                "correct or remove it",
            )
    keys = [key for key in dict.fromkeys([*saved, *present]) if saved.get(key) != present.get(key)]
    keys = [key for key in keys if not _unknown(key, saved, present)]
    refused = [
        key for key in keys if not any(key == one or key.startswith(f"{one}.") for one in allow)
    ]
    if refused:
        what = f"was saved with other values of {', '.join(_told(key, saved, present) for key in refused)}"
        names = ",".join(refused)
        another = (
            f"add 'resume.allow=[{names}]'"
            if loads()
            else "begin a new run: this state does not load with them"
        )
        raise CheckpointError(
            105, f"resume = {run}", what, f"leave them as they were, or {another}"
        )


def _unknown(key: str, saved: Learned, present: Learned) -> bool:
    """A folder of images and the like know no digest: what they hold is not compared."""
    return key == "data.digest" and None in (saved.get(key), present.get(key))


def _told(key: str, saved: Learned, present: Learned) -> str:
    values = [side.get(key, "nothing") for side in (saved, present)]
    return (
        key
        if any(isinstance(value, str) and value != "nothing" for value in values)
        else f"{key} ({values[0]}, now {values[1]})"
    )


def check_form(state: Mapping[str, Any]) -> None:
    """ValueError or TypeError for what no run of ours saves, whatever its checksum says: counts that are none, texts where numbers belong."""
    for name, count in state["progress"].items():
        if type(count) is not int or count < 0:
            raise ValueError(f"progress.{name} is {count!r}")
    for part in ("best", "val"):
        for name, mean in state[part].items():
            if type(mean) not in (int, float):
                raise ValueError(f"{part}.{name} is no number")
    if state["best"] and state["best"].keys() - {"step"} != state["val"].keys():
        raise ValueError("best and val are not of the same means")
    for values in state["optimizer"]["state"].values():
        for name, value in values.items():
            if not isinstance(value, Tensor | int | float | None):
                raise TypeError(f"the optimizer's {name} is {type(value).__name__}")
