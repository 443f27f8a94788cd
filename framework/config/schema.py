"""The values of ``train``'s own keys, checked before anything is opened."""

import math
import os
from collections.abc import Sequence
from typing import Any

from framework.config.targets import did_you_mean
from framework.errors import ConfigError
from framework.parallel.virtual_counts import check_virtual_ranks
from framework.train.lr_scaling import KEYS as SCALING_KEYS
from framework.train.lr_scaling import RULES as SCALINGS

# key: (types, least value or None); None among the types: may be left out
RULES: dict[str, tuple[tuple[type, ...], float | None]] = {
    "seed": ((int,), 0),
    "epochs": ((int,), 1),
    "max_steps": ((int, type(None)), 1),
    "batch_size": ((int,), 1),
    "rank_batch_size": ((int, type(None)), 1),
    "accumulate": ((int,), 1),
    "clip_norm": ((int, float, type(None)), 0),
    "ema_decay": ((int, float, type(None)), 0),
    "report_every": ((int,), 1),
    "validate_every": ((int, type(None)), 1),
    "limit": ((int, type(None)), 1),
    "shuffle": ((bool,), None),
    "last": ((str,), None),
    "channels_last": ((bool,), None),
    "compile": ((bool,), None),
    "cuda_graph": ((bool,), None),
    "clock": ((bool,), None),
    "device": ((str,), None),
    "search_metric": ((str,), None),
    "on_nan": ((str,), None),
    "max_skips": ((int,), 0),
    "debug": ((str, type(None)), None),
    "dataset": ((str, type(None)), None),
    "source": ((str, type(None)), None),
    "allow_targets": ((list,), None),
    "prepare": ((dict, type(None)), None),
    "verify": ((str,), None),
}
# in the run directory: what run.json says of a run, and what it will say once a resumed run has
# taken up its state
FACTS, NEXT_FACTS = "run.json", "run.next.json"
AFTER_STEP = "after step "  # a note on the error that ended a run; the number follows
DALI = "framework.data.dali.dali_source"
PROFILE = "profile"  # the folder of debug=profile's traces
GROUPS = (
    "data",
    "loader",
    "parallel",
    "precision",
    "model",
    "objective",
    "optim",
    "schedule",
    "order",
    "transform",
    "augment",
    "sink",
    "workers",
    "checkpoint",
    "resume",
)


PARTS = (
    "loader",
    "parallel",
    "precision",
    "model",
    "objective",
    "optim",
    "schedule",
    "transform",
    "augment",
)
WORKERS = ("num", "kind", "start_method", "timeout_s")
LAST = ("short", "drop", "wrap")
VERIFY = ("off", "first_epoch", "always")
ON_NAN = ("stop", "skip")
MOST_WORKERS = 1024
CHECKPOINT = ("every_steps", "every_s", "keep")
RESUME = ("run", "auto", "allow")


def check(config: dict[str, Any]) -> None:
    """ConfigError C101 for a value that cannot be, C102 for a key nobody reads."""
    for key, (types, least) in RULES.items():
        value = config.get(key)
        fits = isinstance(value, types) and not (isinstance(value, bool) and bool not in types)
        if not fits or (least is not None and value is not None and value < least):
            wanted = " or ".join("null" if t is type(None) else t.__name__ for t in types)
            raise ConfigError(
                101,
                f"{key} = {value}",
                "not a value it can have",
                f"give {wanted}{'' if least is None else f', at least {least:g}'}",
            )
        if key not in config:
            raise ConfigError(101, key, "was taken away", "leave it in")
    _check_numbers(config)
    for key, value in config.items():
        if key not in RULES and key not in GROUPS:
            raise ConfigError(
                102,
                f"{key} = {value}",
                f"no such key{did_you_mean(key, [*RULES, *GROUPS])}",
                "correct or remove it",
            )
    if isinstance(resume := config.get("resume"), str):
        fix = "give that run's own words" if resume else "give the directory of a run"
        raise ConfigError(196 if resume else 101, f"resume = {resume}", "does not name a run", fix)
    for group in GROUPS:
        if (
            group == "sink" and config.get(group) is None
        ):  # sink=[]: nothing is written but the summary
            continue
        if not isinstance(config.get(group), dict):
            raise ConfigError(
                101,
                f"{group} = {_as_typed(config.get(group))}",
                "nothing is chosen",
                "see the choices with 'paceline train --help'",
            )
    _check_integers(config)
    _check_parts(config)
    _check_choices(config)
    _check_order(config["order"])
    _check_workers(config["workers"])
    _check_checkpoint(config["checkpoint"])
    _check_resume(config["resume"])


def _as_typed(value: Any) -> str:
    return "null" if value is None else str(value)


def _check_integers(node: Any, where: str = "") -> None:
    """ConfigError C101 for whole numbers that no tensor could hold."""
    if isinstance(node, int) and not -(1 << 63) <= node < 1 << 63:
        raise ConfigError(
            101, f"{where} = {node}"[:100], "not a value it can have", "give less than 2**63"
        )
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        for name, value in node.items():
            _check_integers(value, f"{where}.{name}" if where else str(name))


def _check_parts(config: dict[str, Any]) -> None:
    """ConfigError C101 where a part should be described and is not."""
    data = config.get("data") or {}
    parts = {name: config.get(name) for name in PARTS} | {"data.source": data.get("source")}
    parts |= {f"sink.{name}": block for name, block in (config.get("sink") or {}).items()}
    parts |= {} if data.get("writer") is None else {"data.writer": data["writer"]}
    for where, block in parts.items():
        if block is None or (where == "optim" and block.keys() == set(SCALING_KEYS)):
            fix = "choose one, see 'paceline train --help', or give a _target_"
            raise ConfigError(101, f"{where} = null", "nothing is chosen", fix)
        if not isinstance(block, dict) or not isinstance(block.get("_target_"), str):
            raise ConfigError(
                101,
                f"{where} = {block}"[:200],
                "describes no part",
                "choose one, or give it a _target_",
            )
    for split, types in (("train", str), ("val", str | None)):
        if split not in data or not isinstance(data[split], types):
            raise ConfigError(
                101,
                f"data.{split} = {data.get(split)}",
                "not a value it can have",
                "give the path of a store",
            )


def _check_choices(config: dict[str, Any]) -> None:
    if config["verify"] not in VERIFY:
        raise ConfigError(
            173,
            f"verify = {config['verify']}",
            "not a time to verify",
            f"choose one of {', '.join(VERIFY)}",
        )
    if config["last"] not in LAST:
        what = "must be short, drop or wrap"
        raise ConfigError(134, f"last = {config['last']}", what, "choose one of them")
    if config["on_nan"] not in ON_NAN:
        raise ConfigError(
            178,
            f"on_nan = {config['on_nan']}",
            "must be stop or skip",
            "choose one of them",
        )
    if (
        str(config["parallel"]["_target_"]).endswith(".ShardedParallel")
        and config["precision"].get("dtype") == "fp16"
    ):
        what = (
            "parallel=fsdp cuts gradients into parts, and each rank would find a scale of its own"
        )
        raise ConfigError(139, "precision.dtype = fp16", what, "choose bf16")
    _check_learning(config)
    _check_scaling(config["optim"])
    _check_parts_of_a_batch(config)
    if not _is_count(max_restarts := config["parallel"].get("max_restarts", 0), 0):
        raise ConfigError(
            126,
            f"parallel.max_restarts = {max_restarts}",
            "not a number it can be",
            "give int, at least 0",
        )
    for where, block in (
        ("loader", config["loader"]),
        ("parallel", config["parallel"]),
        ("data.source", config["data"]["source"]),
    ):
        _check_counts(where, block)


def _check_learning(config: dict[str, Any]) -> None:
    if config["clip_norm"] == 0:
        raise ConfigError(
            101, "clip_norm = 0", "would learn nothing", "give a number above 0, or null"
        )
    if (config["ema_decay"] or 0) >= 1:
        raise ConfigError(
            101,
            f"ema_decay = {config['ema_decay']}",
            "would keep the first weights",
            "give a number below 1, or null",
        )
    rate = config["optim"].get("lr")
    if rate is None:  # some optimizers find their own
        return
    if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < math.inf:
        raise ConfigError(101, f"optim.lr = {rate}", "not a rate", "give a number, at least 0")


def _check_scaling(optim: dict[str, Any]) -> None:
    rule, reference = optim.get("scaling") or "none", optim.get("reference_batch_size")
    if rule not in SCALINGS:
        raise ConfigError(
            135,
            f"optim.scaling = {rule}",
            "not a rule for the learning rate",
            f"choose one of {', '.join(SCALINGS)}",
        )
    if not (reference is None or _is_count(reference, 1)) or (reference is None and rule != "none"):
        what = (
            "the batch size that optim.lr is meant for is missing"
            if reference is None
            else "not a batch size"
        )
        raise ConfigError(
            135,
            f"optim.reference_batch_size = {reference}",
            what,
            "give the batch size that optim.lr is right for",
        )


def _check_parts_of_a_batch(config: dict[str, Any]) -> None:
    """ConfigError C143, C144, of ``parallel=virtual``."""
    parallel = config["parallel"]
    if "virtual_ranks" not in parallel:
        return
    if config["accumulate"] != 1:
        what = "parallel=virtual takes a pass for each of its virtual ranks"
        raise ConfigError(
            144,
            f"accumulate = {config['accumulate']}",
            what,
            "leave it out, and raise parallel.virtual_ranks",
        )
    _check_counts("parallel", parallel)
    own = parallel.get("num_processes", 1) * parallel.get("num_nodes", 1)
    launched = {"RANK", "WORLD_SIZE"} <= os.environ.keys()  # by torchrun, whose word counts
    check_virtual_ranks(
        parallel["virtual_ranks"], int(os.environ["WORLD_SIZE"]) if launched else own
    )


def _check_numbers(node: Any, where: str = "") -> None:
    """ConfigError C101 for nan, which no key takes."""
    if isinstance(node, dict | list):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            _check_numbers(value, f"{where}.{name}" if where else str(name))
    elif isinstance(node, float) and math.isnan(node):
        raise ConfigError(101, f"{where} = nan", "not a number", "give one")


def _check_counts(where: str, block: dict[str, Any]) -> None:
    """ConfigError C126 for what is counted and cannot be less than one, and for sizes and times
    that cannot be 0.
    """
    for key in (
        "depth",
        "copies",
        "num_processes",
        "num_nodes",
        "prefetch_depth",
        "virtual_ranks",
        "num_threads",
    ):
        value = block.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(
                126, f"{where}.{key} = {value}", "not a number it can be", "give int, at least 1"
            )
    for key in (
        ("timeout_s", "bucket_mb") if str(block["_target_"]).startswith("framework.") else ()
    ):
        if not _is_seconds(value := block.get(key, 1)):
            raise ConfigError(
                126, f"{where}.{key} = {value}", "not a number it can be", "give a number above 0"
            )


def _check_order(order: dict[str, Any]) -> None:
    _check_keys("order", order, ("block_records", "window_blocks"))
    for key, value in order.items():
        if not (_is_count(value, 1) or (value is None and key == "block_records")):
            raise ConfigError(
                126, f"order.{key} = {value}", "not a number it can be", "give int, at least 1"
            )


def _is_count(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_seconds(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _check_workers(workers: dict[str, Any]) -> None:
    num, kind, timeout_s = workers.get("num"), workers.get("kind"), workers.get("timeout_s")
    method = workers.get("start_method")
    if num is not None and not (_is_count(num, 0) and num <= MOST_WORKERS):
        raise ConfigError(
            101,
            f"workers.num = {num}",
            "not a value it can have",
            f"give int, 0 to {MOST_WORKERS}, or null",
        )
    if kind not in ("thread", "process"):
        raise ConfigError(
            107, f"workers.kind = {kind}", "not a kind of worker", "choose thread or process"
        )
    if method not in (None, "fork", "forkserver", "spawn") or (
        method is not None and kind == "thread"
    ):
        what = "threads are not started so" if kind == "thread" else "not a way to start a process"
        raise ConfigError(
            107,
            f"workers.start_method = {method}",
            what,
            "choose fork, forkserver or spawn, with workers.kind=process",
        )
    if not _is_seconds(timeout_s):
        raise ConfigError(
            101,
            f"workers.timeout_s = {timeout_s}",
            "not a value it can have",
            "give seconds, above 0",
        )
    _check_keys("workers", workers, WORKERS)


def _check_checkpoint(block: dict[str, Any]) -> None:
    _check_keys("checkpoint", block, CHECKPOINT)
    every_steps, every_s, keep = (block.get(key) for key in CHECKPOINT)
    if not (every_steps is None or _is_count(every_steps, 1)):
        raise ConfigError(
            101,
            f"checkpoint.every_steps = {every_steps}",
            "not a value it can have",
            "give int, at least 1, or null",
        )
    if not (every_s is None or _is_seconds(every_s)):
        raise ConfigError(
            101,
            f"checkpoint.every_s = {every_s}",
            "not a value it can have",
            "give seconds, above 0, or null",
        )
    if not _is_count(keep, 1):
        raise ConfigError(
            101, f"checkpoint.keep = {keep}", "not a value it can have", "give int, at least 1"
        )


def _check_resume(block: dict[str, Any]) -> None:
    _check_keys("resume", block, RESUME)
    run, auto, allow = (block.get(key) for key in RESUME)
    if not isinstance(auto, bool):
        raise ConfigError(
            101, f"resume.auto = {auto}", "not a value it can have", "give true or false"
        )
    if not isinstance(run, str | None):
        raise ConfigError(
            101,
            f"resume.run = {run}",
            "not a value it can have",
            "give the directory of a run, or null",
        )
    if not isinstance(allow, list) or not all(isinstance(key, str) for key in allow):
        raise ConfigError(
            101,
            f"resume.allow = {allow}",
            "not a value it can have",
            "give keys, as in 'resume.allow=[optim.lr]'",
        )


def _check_keys(where: str, block: dict[str, Any], known: Sequence[str]) -> None:
    for key in block:
        if key not in known:
            raise ConfigError(
                102,
                f"{where}.{key}",
                f"no such key{did_you_mean(key, known, where)}",
                "correct or remove it",
            )
