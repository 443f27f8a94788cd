"""The values of ``train``'s own keys, checked before anything is opened."""

from typing import Any

from framework.errors import ConfigError
from framework.targets import did_you_mean

# key: (types, least value or None); None among the types: may be left out
RULES: dict[str, tuple[tuple[type, ...], float | None]] = {
    "seed": ((int,), 0),
    "epochs": ((int,), 1),
    "max_steps": ((int, type(None)), 1),
    "batch_size": ((int,), 1),
    "rank_batch_size": ((int, type(None)), 1),
    "accumulate": ((int,), 1),
    "clip_norm": ((int, float, type(None)), 0),
    "ema_decay": ((float, type(None)), 0),
    "report_every": ((int,), 1),
    "validate_every": ((int, type(None)), 1),
    "limit": ((int, type(None)), 1),
    "shuffle": ((bool,), None),
    "device": ((str,), None),
    "resume": ((str, type(None)), None),
    "debug": ((str, type(None)), None),
    "dataset": ((str, type(None)), None),
    "source": ((str, type(None)), None),
    "allow_targets": ((list,), None),
    "prepare": ((dict, type(None)), None),
}
# in the run directory: what run.json says of a run, and what it will say once a resumed run has taken up its state
FACTS, NEXT_FACTS = "run.json", "run.next.json"
GROUPS = (
    "data",
    "loader",
    "parallel",
    "precision",
    "model",
    "objective",
    "optim",
    "schedule",
    "transform",
    "augment",
    "sink",
    "workers",
)


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
    for key, value in config.items():
        if key not in RULES and key not in GROUPS:
            raise ConfigError(
                102, f"{key} = {value}", f"no such key{did_you_mean(key, [*RULES, *GROUPS])}", "correct or remove it"
            )
    for group in GROUPS:
        if group == "sink" and config.get(group) is None:  # sink=[]: nothing is written but the summary
            continue
        if not isinstance(config.get(group), dict):
            raise ConfigError(
                101, f"{group} = {config.get(group)}", "nothing is chosen", "see the choices with 'paceline train --help'"
            )
    if config["clip_norm"] == 0 or (config["ema_decay"] or 0) >= 1:
        where = f"clip_norm = {config['clip_norm']}, ema_decay = {config['ema_decay']}"
        raise ConfigError(101, where, "would learn nothing", "give clip_norm above 0, ema_decay below 1")
    for where, block in (
        ("loader", config["loader"]),
        ("parallel", config["parallel"]),
        ("data.source", config["data"].get("source") or {}),
    ):
        _check_counts(where, block)
    _check_workers(config["workers"])


def _check_counts(where: str, block: dict[str, Any]) -> None:
    """ConfigError C126 for what is counted and cannot be less than one."""
    for key in ("depth", "copies", "num_processes", "prefetch_depth"):
        value = block.get(key, 1)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(126, f"{where}.{key} = {value}", "not a number it can be", "give int, at least 1")


def _check_workers(workers: dict[str, Any]) -> None:
    num, kind = workers.get("num"), workers.get("kind")
    if not isinstance(num, int) or isinstance(num, bool) or num < 0:
        raise ConfigError(101, f"workers.num = {num}", "not a value it can have", "give int, at least 0")
    if kind not in ("thread", "process"):
        raise ConfigError(107, f"workers.kind = {kind}", "not a kind of worker", "choose thread or process")
    for key in workers:
        if key not in ("num", "kind"):
            raise ConfigError(
                102, f"workers.{key}", f"no such key{did_you_mean(key, ['num', 'kind'], 'workers')}", "correct or remove it"
            )
