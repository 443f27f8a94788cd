"""What a saved run says of its configuration, and whether another run learns the same."""

import copy
import os
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from hashlib import sha256
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from omegaconf import AnyNode, Container, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from framework.config.schema import check_values, option_rules
from framework.config.targets import Config, val_sets, walk
from framework.contracts.records import Field, Manifest
from framework.errors import CheckpointError, ConfigError, PacelineError, did_you_mean, words_of
from framework.system import run_dir as files
from framework.train.parameter_groups import thaws_of
from framework.train.trainer import Trainer

if TYPE_CHECKING:
    from framework.config.assemble import Assembly

Learned = dict[str, Any]  # dotted key: a number, None, or the hash of a text

# The keys and parts of a configuration that use needs; training alone reads the others.
USED_KEYS = (
    *("seed", "batch_size", "val_batch_size", "rank_batch_size", "accumulate", "shuffle", "last"),
    *("limit", "select", "fold", "folds", "fold_by", "channels_last", "compile", "device"),
    *("collate", "verify", "clock", "deterministic"),
)
USED_PARTS = ("model", "objective", "transform", "augment", "precision", "parallel", "loader")
# with up to two levels of braces inside
DECODED = re.compile(r"\$\{oc\.decode:((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}")
PARTS = ("model", "objective", "optim", "schedule", "precision", "augment", "transform", "order")
VIRTUAL = ("virtual_ranks", "num_threads")  # keys of parallel=virtual that change its bits
MIXING = ("weights", "temperature")  # keys of data=mixture
# Of data, beside an object of the user's.
MADE_KEYS = ("fields", "ragged", "collate", "num_batches")
SELECTING = ("select", "fold", "folds", "fold_by")
AVERAGING = ("ema_decay", "ema_every", "ema_ramp", "ema_lookahead")
KEYS = ("seed", "shuffle", "last", "limit", "clip_norm", *AVERAGING, *SELECTING)
PATIENCE = "stop.patience"  # the watcher that ends a run without a better validation
FOLLOWS = "framework.schedule.plateau.Plateau"  # a schedule whose rates validations decide
KINDS = {  # of the parts of a state
    **dict.fromkeys(("model", "optimizer", "precision", "progress", "order"), dict),
    **dict.fromkeys(("best", "val", "pending", "watching", "learned", "ends"), dict),
    **dict.fromkeys(("average", "schedule", "validation"), (dict, NoneType)),
    "generators": list,
    "trained_s": float,
    "ended": str,
    "init": (str, NoneType),
}


class SavedConfig(NamedTuple):
    config: Config  # resolved, with paths of data as they are reached from here
    train: Manifest  # what is known of the training data
    digests: Mapping[str, str | None]  # of the data that was read, by split
    folder: str  # in which the run was started, if paths of data had to be found from there


def read_config(run_dir: Path, name: str | None = None) -> SavedConfig:
    """Return the resolved configuration of a run, and what it knows of its data.

    ``name`` is the file of the configuration; None: the newest one. Nothing that the configuration
    names is imported. CheckpointError K120, or K126 for a directory with links.
    """
    where = f"run = {run_dir}"
    fix = "give the directory that a run printed"
    files.check_entry(run_dir)
    try:
        newest = files.newest_config(run_dir)
        chosen = run_dir / Path(name or newest.name).name
        config = _resolved(files.read_json(chosen))
        facts = files.read_json(run_dir / files.FACTS)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"not the directory of a run (no resolved.json and {files.FACTS})"
        raise CheckpointError(120, where, what, fix) from error
    except (OSError, ValueError, RecursionError) as error:
        what = f"its files cannot be read ({words_of(error)})"
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
        used = [key for key in rules if key in USED_KEYS or "workers." in key]
        check_values(config, {key: rules[key] for key in used})
        for block in (*(config[part] for part in USED_PARTS), config["data"]["source"]):
            block["_target_"].split(".")
        config["order"].keys()
        digests = {split: block.get("digest") for split, block in facts["data"].items()}
        folders = {part["config"]: part.get("folder") for part in facts.get("starts", [])}
        folder = files.restored(folders.get(chosen.name) or facts.get("folder") or "")
        given = copy.deepcopy(config["data"])
        if folder and Path(folder) != Path.cwd():
            for group, key in (("data", "train"), ("data", "val"), ("objective", "weights")):
                if key in config[group]:
                    config[group][key] = files.reached(config[group][key], folder)
        if config["data"] == given:
            folder = ""
        train = facts["data"]["train"]
        known = {field.name for field in fields(Manifest)} - {"shards", "statistics"}
        plain: Config = {key: train[key] for key in train if key in known}
        plain["fields"] = {
            name: Field(field["dtype"], tuple(field["shape"]), field["encoding"], field["kind"])
            for name, field in train["fields"].items()
        }
        return SavedConfig(config, Manifest(**plain), digests, folder)
    except ConfigError as error:
        what = f"its configuration cannot be used: {error}"
        raise CheckpointError(120, where, what, fix) from error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        what = f"its configuration or its {files.FACTS} is damaged ({words_of(error)})"
        raise CheckpointError(120, where, what, fix) from error


def _resolved(node: Any) -> Any:
    """Return a copy with the values of the environment, which run directories only name."""
    if isinstance(node, dict):
        return {str(key): _resolved(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_resolved(value) for value in node]
    if not isinstance(node, str):
        return node
    if whole := DECODED.fullmatch(node):  # not a text, but what it stands for
        return _decoded(whole)
    text = DECODED.sub(lambda match: str(_decoded(match)), node)
    if "${oc.decode:" in text:
        raise ValueError(f"{node} has no end")
    return files.REFERENCE.sub(_variable, text)


def _decoded(match: re.Match[str]) -> Any:
    text = files.REFERENCE.sub(_variable, match[1])
    try:
        value = oc.decode(text, OmegaConf.create(), AnyNode(None))
    except OmegaConfBaseException as error:
        raise ValueError(f"{match[0]} does not name a value") from error
    return OmegaConf.to_container(value) if isinstance(value, Container) else value


def _variable(match: re.Match[str]) -> str:
    files.note([match[1]])
    if match[1] not in os.environ:
        raise ValueError(f"the environment variable {match[1]} is not set")
    return os.environ[match[1]]


def put(config: Config, name: str, value: Any) -> None:
    """Set the value at a dotted name that holds ``auto``. A name without a place is left out."""
    *parents, key = name.split(".")
    block: Any = config
    with suppress(KeyError, ValueError):  # also of a key that contains a dot
        for parent in parents:
            block = block[int(parent)] if isinstance(block, list) else block[parent]
        if isinstance(block, dict) and key in block:
            block[key] = value


def learned(
    config: Config, batch_size: int, manifest: Manifest, validates: Learned | None = None
) -> Learned:
    """Return all that decides what is learned, by dotted key.

    How the work is cut and carried (ranks, workers, loader, store, device) does not decide it, and
    neither does the number of steps. Texts are hashed, because they may come from the environment
    and be secret. ``batch_size`` is over all ranks, ``manifest`` that of the training data. What
    ``evaluated_data`` returns counts only if the rate follows validations.
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
    values = _values(chosen)
    if config["schedule"].get("_target_") == FOLLOWS:
        values["validate_every"] = config["validate_every"]
        if config["validate_first"]:
            values["validate_first"] = True
        values |= {f"validation.{key}": value for key, value in (validates or {}).items()}
    return values


def _contents(manifest: Manifest) -> Config:
    classes = "\0".join(manifest.classes)
    return {"records": manifest.num_records, "classes": classes, "digest": manifest.digest or None}


def _made(data: Config, split: str, given: Any) -> Config:
    """Return how an object of the user's is made, which nothing else identifies; {} for paths."""
    if not isinstance(given, dict) or "_target_" not in given:
        return {}
    return {split: given, **{key: data[key] for key in MADE_KEYS if data.get(key) is not None}}


def _values(config: Config) -> Learned:
    values: Learned = {}
    for where, value in walk(config):
        if isinstance(value, int | float | None):
            values[where] = value
        elif not isinstance(value, dict | list):
            values[where] = sha256(str(value).encode(errors="surrogateescape")).hexdigest()[:16]
    return values


def ending(config: Config) -> Learned:
    """Return what may end a run before its last step, by dotted key."""
    return _values({name: config.get(name) or {} for name in ("stop", "watchers")})


def evaluated_data(
    manifests: Mapping[str, Manifest], config: Config, key: str = "val"
) -> Learned | None:
    """Return what tells the validation (or ``test``) of one run from another's; None without."""
    data = config["data"]
    sets: dict[str, Learned] = {}
    for name, manifest in manifests.items():
        val = val_sets(data, key)[name]
        made = _made(data, key, val)
        facts: Config = {"data": _contents(manifest) | made, "path": None, "limit": config["limit"]}
        if not manifest.digest and not made:  # a path counts only for data without a digest
            facts["path"] = os.path.abspath(val) if isinstance(val, str) else str(val)
        facts |= {key: config[key] for key in SELECTING if config[key] is not None}
        if data.get("val_transform") is not None:
            facts["transform"] = data["val_transform"]
        sets[name] = _values(facts)
    if not sets or "" in sets:
        return sets.get("")
    return {f"{name}.{key}": value for name in sets for key, value in sets[name].items()}


def check_same(run: str, saved: Learned, present: Learned, allow: Sequence[str]) -> None:
    """Check that a saved run, which ``resume`` names, and this one learn the same.

    ``allow`` are keys, or the blocks around them, that may differ. CheckpointError K105 for the
    others, ConfigError C102 for a name in ``allow`` that nothing has.
    """
    known = {*PARTS, *KEYS, *(key.split(".")[0] for key in (*saved, *present)), "parallel"}
    for name in allow:
        if name.split(".")[0] not in known:
            what = f"nothing that is learned has this name{did_you_mean(name, sorted(known))}"
            raise ConfigError(102, f"resume.allow = [{name}]", what, "correct or remove it")
    keys = [key for key in dict.fromkeys([*saved, *present]) if saved.get(key) != present.get(key)]
    allowed = tuple(f"{name}." for name in allow)
    refused = [key for key in keys if not f"{key}.".startswith(allowed)]
    # contents without a digest, such as a Dataset, cannot be compared
    if "data.digest" in refused and None in (saved.get("data.digest"), present.get("data.digest")):
        refused.remove("data.digest")
    if not refused:
        return
    differences: list[str] = []
    for key in refused:
        values = saved.get(key, "nothing"), present.get(key, "nothing")
        is_hash = any(isinstance(value, str) and value != "nothing" for value in values)
        differences.append(key if is_hash else f"{key} ({values[0]}, now {values[1]})")
    another = f"add 'resume.allow=[{','.join(refused)}]'"
    if any(key.startswith("init.") for key in refused):
        another = "begin a new run, since a resumed one has its weights"
    elif any(key.startswith("model.") or key == "optim._target_" for key in refused):
        another = f"begin a new run from its weights: init={run}"
    what = f"was saved with other values of {', '.join(differences)}"
    raise CheckpointError(105, f"resume = {run}", what, f"leave them as they were, or {another}")


@contextmanager
def fits_run(run: str) -> Generator[None]:
    """Turn any exception of a part that gets something else from a state into K103."""
    try:
        yield
    except PacelineError:
        raise
    except Exception as error:
        what = f"its state does not fit this configuration ({words_of(error)})"
        another = f"begin a new run from its weights: init={run}"
        fix = f"resume with the model and optimizer it was saved with, or {another}"
        raise CheckpointError(103, f"resume = {run}", what, fix) from error


def restore(trainer: Trainer, assembly: "Assembly", state: dict[str, Any]) -> bool:
    """Load ``state`` into ``trainer``. Return whether the validation data has changed.

    Its figures are dropped then, because figures of different data cannot be compared.

    Raises:
        CheckpointError: K103 if the state does not fit, K104 if an epoch under way was cut
            otherwise, K105 if the saved run learns something else.
    """
    resume = assembly.config["resume"]
    run = resume["run"]
    with fits_run(run):
        for name, kinds in KINDS.items():
            if not isinstance(state[name], kinds):
                raise TypeError(f"{name} is {type(state[name]).__name__}")
        val_changed = state["validation"] != assembly.validates
        if val_changed:
            # what the watchers remember, but not the best metric on other data
            watching = dict(state["watching"])
            watching["watchers"] = {k: v for k, v in watching["watchers"].items() if k != PATIENCE}
            state = {**state, "best": {}, "bests": [], "val": {}, "watching": watching}
        if state["ends"] != ending(assembly.config):  # what ends a run has changed
            state = {**state, "ended": "", "watching": {**state["watching"], "reason": ""}}
        check_same(run, state["learned"], assembly.learns, resume["allow"])
        before, identity = state["order"], trainer.parts.train.identity
        # the records of each batch but the last, which ``last`` decides, too
        cuts = [
            {**order, "records": None, "places": order.get("places", order["records"])}
            for order in (before, identity)
        ]
        if state["progress"]["epoch_step"] and cuts[0] != cuts[1]:
            what = f"was saved inside an epoch of {before}, this one has {identity}"
            fix = "change them when the epoch has ended"
            raise CheckpointError(104, f"resume = {run}", what, fix)
        if "order" in resume["allow"]:  # a user's sampler may give other batches
            state = {**state, "sampler": None}
        trainer.load_state_dict(state)
        if val_changed:
            trainer.stepper.forget_best()
        return val_changed
