"""The options of ``train``: the values that each may have, and which exclude each other.

Their defaults and their help are in ``conf/train.yaml``.
"""

import math
import os
import re
from collections.abc import Iterable
from typing import Any

from framework.config.rule import Rule, check_known, check_values
from framework.config.targets import makes_data, val_sets, walk
from framework.errors import ConfigError
from framework.parallel.virtual_counts import check_virtual_ranks
from framework.train.parameter_groups import GROUPS as PARAMETER_GROUPS
from framework.train.parameter_groups import KEYS as OPTIM_KEYS
from framework.train.parameter_groups import LAYER_DECAY, NO_DECAY, SCALINGS, named_groups
from framework.train.weight_place import check_place

AFTER_STEP = "after step "  # a note on the error that ended a run; the number follows
# ``framework.data.fields.WAYS``, without importing torch: a typo is answered at once.
COLLATE = ("pad", "nested", "list")
DALI = "framework.data.dali.dali_source"
LOADER = "framework.data.dataloader.loader_source"
CLASS = re.compile(r"(\w+\.)+[A-Z]\w*")  # a dotted name such as mine.Clips
UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # of stop.after
PROFILE = "profile"  # the folder of debug=profile's traces

# The parts of a run, each with a _target_. A plain order has none: it is built in.
PARTS = (
    *("loader", "parallel", "precision", "model", "objective", "optim", "schedule"),
    *("transform", "augment"),
)
# Blocks whose keys all have a rule.
BLOCKS = ("order", "workers", "checkpoint", "resume", "init", "best", "stop")
NAMED = ("sink", "metrics", "watchers")  # blocks of parts by name, which may be empty
GROUPS = ("data", *PARTS, *NAMED, *BLOCKS)
NAME = re.compile(r"[A-Za-z_]\w*")  # of a metric or a validation set, without a dot

RULES: dict[str, Rule] = {
    "seed": Rule(int, 0),
    "epochs": Rule(int, 1),
    "max_steps": Rule(int | None, 1),
    "batch_size": Rule(int, 1),
    "rank_batch_size": Rule(int | None, 1),
    "accumulate": Rule(int, 1),
    "clip_norm": Rule(float | None, above=0),
    "ema_decay": Rule(float | None, 0, below=1),
    "ema_every": Rule(int, 1),
    "ema_ramp": Rule(float, 0),
    "ema_lookahead": Rule(bool),
    "report_every": Rule(int, 1),
    "validate_every": Rule(int | None, 1),
    "val_batch_size": Rule(int | None, 1),
    "limit": Rule(int | None, 1),
    "select": Rule(str | None, means="a comparison of fields, as in 'label in [3, 5]'"),
    "fold": Rule(int | None, 0),
    "folds": Rule(int | None, 2),
    "fold_by": Rule(str | None, means="the name of a field"),
    "shuffle": Rule(bool),
    "freeze": Rule(
        list[str] | dict | None,
        means="a list of layers, or the step at which each thaws by its name",
        number=312,
    ),
    "last": Rule(str, choices=("short", "drop", "wrap"), number=134),
    "channels_last": Rule(bool),
    "compile": Rule(bool),
    "cuda_graph": Rule(bool),
    "deterministic": Rule(bool),
    "clock": Rule(bool | str, choices=("full",), means="true, false or full"),
    "device": Rule(str),
    "search_metric": Rule(str),
    "on_nan": Rule(str, choices=("stop", "skip"), number=178),
    "max_skips": Rule(int, 0),
    "debug": Rule(str | None),
    "dataset": Rule(str | None, means="a folder"),
    "source": Rule(str | None, means="a path"),
    "allow_targets": Rule(list[str], means="a list of packages, as in 'allow_targets=[mypkg]'"),
    "prepare": Rule(dict | None),
    "collate": Rule(str, choices=COLLATE, number=199),
    "verify": Rule(str, choices=("off", "first_epoch", "always"), number=173),
}
RULES_BY_BLOCK: dict[str, dict[str, Rule]] = {
    "order": {
        "block_records": Rule(int | None, 1, number=126),
        "window_blocks": Rule(int, 1, number=126),
    },
    "workers": {
        "num": Rule(
            int | str | None,
            0,
            1024,
            choices=("auto",),
            means="auto, or a whole number",
        ),
        "kind": Rule(str | None, choices=("thread", "process"), number=107),
        "start_method": Rule(str | None, choices=("fork", "forkserver", "spawn"), number=107),
        "timeout_s": Rule(float, above=0, means="a number of seconds"),
    },
    "checkpoint": {
        "every_steps": Rule(int | None, 1),
        "every_epochs": Rule(int | None, 1),
        "every_s": Rule(float | None, above=0, means="a number of seconds"),
        "keep": Rule(int, 1),
    },
    "resume": {
        "run": Rule(str | None, means="the directory of a run"),
        "auto": Rule(bool),
        "allow": Rule(list[str], means="a list of keys, as in 'resume.allow=[optim.lr]'"),
    },
    "init": {
        "weights": Rule(str | None, means="the path of a file of weights, or of a run"),
        "average": Rule(bool),
        "skip": Rule(list[str], means="a list of names, as in 'init.skip=[head]'"),
        "rename": Rule(dict | None, means="old names and new ones, as in 'init.rename={fc: head}'"),
    },
    "best": {
        "metric": Rule(str | None, means="the name of a metric of the validation"),
        "mode": Rule(str, choices=("auto", "max", "min")),
    },
    "stop": {
        "metric": Rule(str | None, means="the name of a metric of the validation"),
        "mode": Rule(str, choices=("auto", "max", "min")),
        "patience": Rule(int | None, 1),
        "after": Rule(str | None, means="a time, as in 90m, 2h, 1d or 3600s"),
    },
    "data": {
        "train": Rule(str | dict, means="the path of a store, or of several by name"),
        "val": Rule(str | dict | None, means="the path of a store, or of several by name"),
    },
}
# Keys that only some choices have. They are checked if they are there.
_COUNT = Rule(int, 1, number=126)
_SIZE = Rule(float, above=0, number=126)
# Keys of a group of parameters. It may have options of the optimizer, too.
GROUP_RULES: dict[str, Rule] = {
    "match": Rule(str | list[str], means="a name of parameters, or a list of them", number=147),
    "lr": Rule(float, 0, number=147),
    "lr_factor": Rule(float, 0, number=147),
    "until": Rule(float, 0, 1, number=147),
}
CHOICE_RULES: dict[str, dict[str, Rule]] = {
    "optim": {
        "lr": Rule(float | None, 0),  # some optimizers find their own
        "scaling": Rule(str | None, choices=tuple(SCALINGS), number=135),
        "reference_batch_size": Rule(int | None, 1, number=135),
        PARAMETER_GROUPS: Rule(
            dict | list[dict] | None, means="groups, in a list or by name", number=147
        ),
        NO_DECAY: Rule(
            list[str] | None, means="norm, bias, or patterns of names, in a list", number=310
        ),
        LAYER_DECAY: Rule(float | None, 0, 1, number=311),
    },
    "schedule": {
        "warmup_steps": Rule(int, 0, number=313),
        "warmup_epochs": Rule(float | None, 0, number=313),
    },
    "order": {
        "field": Rule(str | None, means="the name of a field", number=126),
        "max_values": Rule(int | None, 1, number=126),
        "width": Rule(float, 0, below=1, number=126),
        "file": Rule(str | None, means="the path of a file", number=126),
        "threshold": Rule(float, 0, 1, number=126),
    },
    "loader": {"depth": _COUNT, "copies": _COUNT},
    "parallel": {
        "num_processes": _COUNT,
        "num_nodes": _COUNT,
        "virtual_ranks": _COUNT,
        "num_threads": _COUNT,
        "max_restarts": Rule(int, 0, number=126),
        "timeout_s": _SIZE,
        "bucket_mb": _SIZE,
    },
    "data": {
        "val_transform": Rule(dict | None),
        "weights": Rule(dict | None, means="the share of each store by name", number=126),
        "temperature": _SIZE,
    },
    "data.source": {
        "prefetch_depth": _COUNT,
        "num_threads": _COUNT,
        "cache_mb": _COUNT,
        "num_batches": Rule(int | None, 1, number=126),
    },
}

# Keys of our sinks. They are checked if they are there.
SINK_RULES: dict[str, Rule] = {
    "num_images": Rule(int, 0, number=126),
    "every_s": _SIZE,
    "close_s": Rule(float, 0, number=126),
}


def check(config: dict[str, Any]) -> None:
    """Check every option before anything is opened.

    Raises:
        ConfigError: The error of the option's rule for a value that it cannot have, C101 for a
            missing key or part, C102 for a key nobody reads, C135, C139, C144, C147, C148 or C107
            for values that exclude or need each other.
    """
    _check_numbers(config)
    check_values(config, RULES)
    check_known(config, (*RULES, *GROUPS))
    _check_short(config)
    for group in GROUPS:
        block = config.get(group)
        if block is None and group in NAMED:  # sink=[]: only the summary is written
            continue
        if not isinstance(block, dict):
            shown = "null" if block is None else block
            fix = "see the choices with 'paceline train --help'"
            raise ConfigError(101, f"{group} = {shown}", "nothing is chosen", fix)
    if config["data"].keys() == {"val_transform"}:  # the only key that no choice of data gives
        fix = "see the choices with 'paceline train --help'"
        raise ConfigError(101, "data = null", "nothing is chosen", fix)
    _check_parts(config)
    for group, rules in RULES_BY_BLOCK.items():
        if group == "order" and "_target_" in config[group]:
            continue  # a part, whose keys ``CHOICE_RULES`` and its own arguments check
        check_values(config[group], rules, f"{group}.")
        if group in BLOCKS:
            check_known(config[group], tuple(rules), group)
    _check_choices(config)
    _check_data(config["data"])
    _check_together(config)


def _check_short(config: dict[str, Any]) -> None:
    """Raise ConfigError C101, C196 or C301 for a text where a block is wanted."""
    resume = config.get("resume")
    if isinstance(resume, str):
        what = "does not name a run"
        if resume:
            fix = "give that run's own words"
            raise ConfigError(196, f"resume = {resume}", what, fix)
        raise ConfigError(101, "resume = ''", what, "give the directory of a run")
    if isinstance(config.get("init"), str):
        what = "must be a block of keys"
        raise ConfigError(301, f"init = {config['init']}"[:200], what, "leave out the +: init=FILE")


def _check_numbers(config: dict[str, Any]) -> None:
    """Raise ConfigError C101 for nan, and for whole numbers that no tensor could hold."""
    for where, value in walk(config):
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(101, f"{where} = nan", "not a number", "give one")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            what = "must be a whole number below 2**63"
            raise ConfigError(101, f"{where} = {value}"[:100], what, "correct it")


def _check_parts(config: dict[str, Any]) -> None:
    """Raise ConfigError C101 for a part without a description."""
    data = config["data"]
    parts = {name: config[name] for name in PARTS} | {"data.source": data.get("source")}
    for group in NAMED:
        parts |= {f"{group}.{name}": block for name, block in (config.get(group) or {}).items()}
    if data.get("val_transform") is not None:
        parts["data.val_transform"] = data["val_transform"]
    if data.get("writer") is not None:
        parts["data.writer"] = data["writer"]
    for where, block in parts.items():
        if block is None or (where == "optim" and block.keys() == set(OPTIM_KEYS)):
            fix = "choose one, see 'paceline train --help', or give a _target_"
            raise ConfigError(101, f"{where} = null", "nothing is chosen", fix)
        if not isinstance(block, dict) or not isinstance(block.get("_target_"), str):
            fix = "choose one, or give it a _target_"
            raise ConfigError(101, f"{where} = {block}"[:200], "describes no part", fix)


def _check_choices(config: dict[str, Any]) -> None:
    """Check the options of the chosen parts."""
    blocks = {**config, "data.source": config["data"]["source"]}
    for place, rules in CHOICE_RULES.items():
        block = blocks[place]
        is_ours = _is_ours(block)
        for key, rule in rules.items():
            if key in block and (is_ours or rule is not _SIZE):
                rule.check(f"{place}.{key}", block[key])
    for name, block in (config.get("sink") or {}).items():
        for key in block.keys() & SINK_RULES.keys() if _is_ours(block) else ():
            SINK_RULES[key].check(f"sink.{name}.{key}", block[key])


def _is_ours(block: dict[str, Any]) -> bool:
    return block.get("_target_", "framework.").startswith("framework.")


def _check_data(data: dict[str, Any]) -> None:
    """Raise ConfigError C233 for a path where an object is wanted, or the other way around."""
    makes = makes_data(data)
    sets = val_sets(data)
    splits = {f"val.{name}" if name else "val": given for name, given in sets.items()}
    if sets != {"": data["val"]}:
        _check_names("data.val", sets)
    for split, given in {"train": data["train"], **splits}.items():
        where = f"data.{split} = {given}"
        is_block = isinstance(given, dict)
        if makes and given is not None and not (is_block and "_target_" in given):
            what = "must say how to make it, since this choice reads an object of yours"
            name = "mine.Clips"
            if isinstance(given, str) and CLASS.fullmatch(given):
                name = given
            fix = f"give 'data.{split}={{_target_: {name}}}', say"
            raise ConfigError(233, where, what, fix)
        mixes = is_block and "_target_" not in given and "weights" in data["source"]
        if is_block and not makes and not mixes:
            what = "must be the path of a store"
            fix = "for a Dataset of your own add data=dataset, for a DataLoader data=dataloader"
            if "_target_" not in given:
                fix = "for several stores by name add data=mixture"
            raise ConfigError(233, where, what, fix)


def _check_together(config: dict[str, Any]) -> None:
    """Check options that exclude or need each other."""
    method = config["workers"]["start_method"]
    kind = config["workers"]["kind"]
    are_threads = kind == "thread" or (kind is None and not makes_data(config["data"]))
    if method is not None and are_threads:
        fix = "add workers.kind=process"
        where = f"workers.start_method = {method}"
        raise ConfigError(107, where, "threads are not started so", fix)
    is_sharded = config["parallel"]["_target_"].endswith(".ShardedParallel")
    if is_sharded and config["precision"].get("dtype") == "fp16":
        what = (
            "parallel=fsdp cuts gradients into parts, and each rank would find a scale of its own"
        )
        raise ConfigError(139, "precision.dtype = fp16", what, "choose bf16")
    optim = config["optim"]
    is_scaled = (optim.get("scaling") or "none") != "none"
    if is_scaled and optim.get("reference_batch_size") is None:
        what = "the batch size that optim.lr is meant for is missing"
        fix = "give the batch size that optim.lr is right for"
        raise ConfigError(135, "optim.reference_batch_size = null", what, fix)
    if (config["fold"] is None) != (config["folds"] is None):
        where = f"fold = {config['fold']}, folds = {config['folds']}"
        raise ConfigError(205, where.replace("None", "null"), "need each other", "give both")
    if config["fold_by"] is not None and config["folds"] is None:
        where = f"fold_by = {config['fold_by']}"
        raise ConfigError(205, where, "there are no folds", "give fold=0 folds=5, say")
    if config["folds"] is not None and config["fold"] >= config["folds"]:
        what = f"folds are numbered from 0 to {config['folds'] - 1}"
        raise ConfigError(205, f"fold = {config['fold']}", what, "choose one of them")
    _check_parameter_groups(optim)
    _check_freeze(config["freeze"])
    _check_warm_up(config["schedule"])
    _check_validation(config)
    _check_average(config)
    _check_init(config["init"], config["resume"]["run"] is not None)
    if "virtual_ranks" in config["parallel"]:
        _check_virtual(config["parallel"], config["accumulate"])


def _check_parameter_groups(optim: dict[str, Any]) -> None:
    """Raise ConfigError C147 for a group of parameters that is not described."""
    for name, group in named_groups(optim.get(PARAMETER_GROUPS)).items():
        where = f"optim.{PARAMETER_GROUPS}.{name}"
        if not isinstance(group, dict) or "match" not in group:
            what = "does not say which parameters it has"
            fix = "give it match, the names of its parameters, as in {match: '*.bias', until: 0.5}"
            raise ConfigError(147, f"{where} = {group}"[:200], what, fix)
        for key, rule in GROUP_RULES.items():
            if key in group:
                rule.check(f"{where}.{key}", group[key])
        if {"lr", "lr_factor"} <= group.keys():
            what = "has a factor on optim.lr, too"
            raise ConfigError(147, f"{where}.lr = {group['lr']}", what, "give one of them")


def _check_freeze(freeze: Any) -> None:
    """Raise ConfigError C312 for a layer that thaws at no step."""
    if isinstance(freeze, dict):
        step = Rule(int | None, 1, number=312)
        for name, value in freeze.items():
            step.check(f"freeze.{name}", value)


def _check_warm_up(schedule: dict[str, Any]) -> None:
    """Raise ConfigError C313 for a warm-up in steps and in epochs."""
    if schedule.get("warmup_steps") and schedule.get("warmup_epochs") is not None:
        what = f"and schedule.warmup_steps = {schedule['warmup_steps']} exclude each other"
        where = f"schedule.warmup_epochs = {schedule['warmup_epochs']}"
        raise ConfigError(313, where, what, "give one of them")


def _check_names(where: str, names: Iterable[Any]) -> None:
    """Raise ConfigError C330 for a name that could not be part of a metric's name."""
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            what = "must be letters, digits and underscores, since it is part of a metric's name"
            raise ConfigError(330, f"{where}.{name}", what, "rename it")


def _check_validation(config: dict[str, Any]) -> None:
    """Check what looks at the validation.

    Raises:
        ConfigError: C330 for a name, C335 without validation data, C336 for a metric without a
            patience, C337 for a time that is none.
    """
    metrics = config.get("metrics") or {}
    _check_names("metrics", metrics)
    stop = config["stop"]
    if stop["after"] is not None:
        seconds_of("stop.after", stop["after"])
    wanted = {
        "metrics": ", ".join(metrics) or None,
        "best.metric": config["best"]["metric"],
        "stop.metric": stop["metric"],
        "stop.patience": stop["patience"],
    }
    for key, value in wanted.items():
        if value is not None and not val_sets(config["data"]) and config["folds"] is None:
            what = "looks at the validation, and there is none"
            raise ConfigError(335, f"{key} = {value}", what, "give data.val, or leave it out")
    if stop["metric"] is not None and stop["patience"] is None:
        fix = "add stop.patience=5, the validations to wait for a better one"
        raise ConfigError(336, f"stop.metric = {stop['metric']}", "never stops a run", fix)
    for key in ("best", "stop"):
        mode = config[key]["mode"]
        if mode != "auto" and config[key]["metric"] is None:
            what = "is not used without a metric"
            raise ConfigError(336, f"{key}.mode = {mode}", what, f"add {key}.metric=NAME")


def seconds_of(where: str, text: str) -> float:
    """Return the seconds of a time such as ``90m`` or ``1h30m``. ConfigError C337."""
    parts = re.findall(r"(\d+(?:\.\d+)?)([dhms])", text)
    seconds = sum(float(count) * UNITS_S[unit] for count, unit in parts)
    if "".join(map("".join, parts)) != text or not 0 < seconds < math.inf:
        what = "must be a time: numbers with d, h, m or s behind each"
        raise ConfigError(337, f"{where} = {text}"[:100], what, "write 90m, 2h, 1d or 3600s, say")
    return seconds


def _check_average(config: dict[str, Any]) -> None:
    """Raise ConfigError C148 for options of an average that is not kept."""
    if config["ema_decay"] is not None:
        return
    for key, value in (("ema_every", 1), ("ema_ramp", 0), ("ema_lookahead", False)):
        if config[key] != value:
            what = "no average of the weights is kept without ema_decay"
            fix = "set ema_decay, to 0.95 for example"
            raise ConfigError(148, f"{key} = {config[key]}", what, fix)


def _check_renames(names: dict[Any, Any]) -> None:
    for old, new in names.items():
        if not isinstance(old, str) or not isinstance(new, str):
            fix = "give names of modules or tensors, as in 'init.rename={fc: head}'"
            raise ConfigError(301, f"init.rename = {{{old}: {new}}}"[:200], "is no name", fix)


def _check_init(init: dict[str, Any], is_resumed: bool) -> None:
    """Check the options of ``init``. A resumed run has its weights, and reads no file.

    Raises:
        ConfigError: C301 for options that change nothing, or are no names.
        CheckpointError: K110 if nothing is at the path.
    """
    _check_renames(init["rename"] or {})
    if init["weights"] == "":
        raise ConfigError(301, "init = ''", "names no file", "give one, or leave init out")
    if init["weights"] is not None:
        if not is_resumed:
            check_place(init["weights"])
        return
    for key, value in (("average", True), ("skip", []), ("rename", None)):
        if init[key] != value:
            what = "no weights are read without init"
            fix = "add init=FILE, a file of weights or the directory of a run"
            raise ConfigError(301, f"init.{key} = {init[key]}"[:200], what, fix)


def _check_virtual(parallel: dict[str, Any], accumulate: int) -> None:
    """Raise ConfigError C143 or C144 if ``parallel=virtual`` cannot cut a batch so."""
    if accumulate != 1:
        what = "parallel=virtual takes a pass for each of its virtual ranks"
        fix = "leave it out, and raise parallel.virtual_ranks"
        raise ConfigError(144, f"accumulate = {accumulate}", what, fix)
    num_processes = parallel.get("num_processes", 1) * parallel.get("num_nodes", 1)
    if {"RANK", "WORLD_SIZE"} <= os.environ.keys():  # torchrun has started the processes
        num_processes = int(os.environ["WORLD_SIZE"])
    check_virtual_ranks(parallel["virtual_ranks"], num_processes)
