"""The configuration of a run as it was resolved, read from its directory."""

import copy
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import AnyNode, Container, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from framework.config.build import last_line
from framework.config.rule import check_values, option_rules
from framework.config.targets import Config
from framework.contracts.records import Field, Manifest
from framework.errors import CheckpointError, ConfigError
from framework.system.run_dir import (
    FACTS,
    REFERENCE,
    check_entry,
    newest_config,
    note,
    reached,
    read_json,
    restored,
)

# The keys and parts of a configuration that use needs; training alone reads the others.
KEYS = (
    *("seed", "batch_size", "val_batch_size", "rank_batch_size", "accumulate", "shuffle", "last"),
    *("limit", "select", "fold", "folds", "fold_by", "channels_last", "compile", "device"),
    *("collate", "verify", "clock", "deterministic"),
)
USED_PARTS = ("model", "objective", "transform", "augment", "precision", "parallel", "loader")
_DECODED = "${oc.decode:"


class SavedConfig(NamedTuple):
    """What the directory of a run says of its configuration and data.

    Attributes:
        config: Resolved, with paths of data as they are reached from here.
        train: What it knows of its training data.
        digests: Of the data that the run read, by split; None for data without one.
        folder: The folder in which the run was started, or resumed with this configuration, if
            paths of data had to be found from there; else "".
    """

    config: Config
    train: Manifest
    digests: Mapping[str, str | None]
    folder: str


def read_config(run_dir: Path, name: str | None = None) -> SavedConfig:
    """Return the resolved configuration of a run, and what it knows of its data.

    ``name`` is the file of the configuration; None: the newest one. Nothing that the configuration
    names is imported. CheckpointError K120, or K126 for a directory with links.
    """
    where = f"run = {run_dir}"
    fix = "give the directory that a run printed"
    check_entry(run_dir)
    try:
        newest = newest_config(run_dir)
        chosen = run_dir / Path(name or newest.name).name
        config = _resolved(read_json(chosen))
        facts = read_json(run_dir / FACTS)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"not the directory of a run (no resolved.json and {FACTS})"
        raise CheckpointError(120, where, what, fix) from error
    except (OSError, ValueError, RecursionError) as error:
        what = f"its files cannot be read ({last_line(error)})"
        fix = "set the variable, give the run's own copy, or begin with its weights: init=RUN_DIR"
        raise CheckpointError(120, where, what, fix) from error
    if not isinstance(facts, dict) or "data" not in facts:
        what = "the run never began: it has read no data"
        raise CheckpointError(120, where, what, "wait for it, or give the directory of another run")
    try:
        if chosen == newest:  # the others are complete
            for place, value in facts.get("auto", {}).items():
                put(config, place, value)
        rules = option_rules("train")
        check_values(config, {key: rules[key] for key in rules if key in KEYS or "workers." in key})
        for block in (*(config[part] for part in USED_PARTS), config["data"]["source"]):
            block["_target_"].split(".")
        config["order"].keys()
        digests = {split: block.get("digest") for split, block in facts["data"].items()}
        folders = {part["config"]: part.get("folder") for part in facts.get("starts", [])}
        folder = restored(folders.get(chosen.name) or facts.get("folder") or "")
        given = copy.deepcopy(config["data"])
        if folder and Path(folder) != Path.cwd():
            for group, key in (("data", "train"), ("data", "val"), ("objective", "weights")):
                if key in config[group]:
                    config[group][key] = reached(config[group][key], folder)
        return SavedConfig(
            config,
            _manifest(facts["data"]["train"]),
            digests,
            folder if config["data"] != given else "",
        )
    except ConfigError as error:
        what = f"its configuration cannot be used: {error}"
        raise CheckpointError(120, where, what, fix) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"its configuration or its {FACTS} is damaged ({last_line(error)})"
        raise CheckpointError(120, where, what, fix) from error


def _resolved(node: Any) -> Any:
    """Return a copy with the values of the environment, which run directories only name."""
    if isinstance(node, dict):
        return {str(key): _resolved(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolved(value) for value in node]
    return _filled(node) if isinstance(node, str) else node


def _filled(text: str) -> Any:
    """Return a text with its references to the environment filled in.

    A text that is one ``${oc.decode:...}`` becomes the value that it stands for.
    """
    before, mark, rest = text.partition(_DECODED)
    if not mark:
        return REFERENCE.sub(lambda match: _variable(match[1]), text)
    depth, end = 1, 0  # of the braces, up to the one that ends the reference
    while depth and end < len(rest):
        depth += (rest[end] == "{") - (rest[end] == "}")
        end += 1
    if depth:
        raise ValueError(f"{text} has no end")
    try:
        value = oc.decode(str(_filled(rest[: end - 1])), OmegaConf.create(), AnyNode(None))
    except OmegaConfBaseException as error:
        raise ValueError(f"{_DECODED}{rest[:end]} does not name a value") from error
    if isinstance(value, Container):
        value = OmegaConf.to_container(value)
    if not before and end == len(rest):
        return value
    return f"{_filled(before)}{value}{_filled(rest[end:])}"


def _variable(name: str) -> str:
    note([name])
    value = os.environ.get(name)
    if value is None:
        raise ValueError(f"the environment variable {name} is not set")
    return value


def put(config: Config, name: str, value: Any) -> None:
    """Set the value at a dotted name that holds ``auto``. A name without a place is left out."""
    *parents, key = name.split(".")
    block: Any = config
    with suppress(KeyError, ValueError):  # also of a key that contains a dot
        for parent in parents:
            block = block[int(parent)] if isinstance(block, list) else block[parent]
        if isinstance(block, dict) and key in block:
            block[key] = value


def _manifest(block: Mapping[str, Any]) -> Manifest:
    known = {field.name for field in fields(Manifest)} - {"shards", "statistics", "fields"}
    described = {
        name: Field(field["dtype"], tuple(field["shape"]), field["encoding"], field["kind"])
        for name, field in block["fields"].items()
    }
    return Manifest(fields=described, **{key: block[key] for key in block if key in known})
