"""Check options: the values that each may have and, for ``train``, which exclude each other.

The line of an option in ``conf/`` is its only home: ``seed: 0  # int >= 0: for the weights`` has
its name, default, type and help. A type is one of ``TYPES``, or a word that may be given, or
several of these with `` | `` between them. Behind a number stand its limits: ``int >= 1 and <= 9``.
Behind the type stands the number of the error, if it is not C101: ``fork | spawn [C107]: ...``.
"""

import json
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, reduce
from types import NoneType, UnionType
from typing import Any, NamedTuple

from framework.config.targets import CONF, PLAIN_ORDER, Config, makes_data, split_of, val_sets, walk
from framework.errors import ConfigError, did_you_mean
from framework.parallel.processes import check_virtual_ranks
from framework.system.run_dir import check_weights_path
from framework.train import parameter_groups

# The types in comments of ``conf/``, and what messages call them.
NAMED_TYPES: dict[str, tuple[Any, str]] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "bool": (bool, "true or false"),
    "text": (str, "a text"),
    "block": (dict, "a block of keys"),
    "null": (NoneType, "null"),
    "[int]": (list[int], "a list of whole numbers"),
    "[text]": (list[str], "a list of texts"),
    "[block]": (list[dict], "a list of blocks"),
}
TYPES = {name: kind for name, (kind, _) in NAMED_TYPES.items()}
KINDS = dict(NAMED_TYPES.values())
LIMITS = {">=": "least", "<=": "most", ">": "above", "<": "below"}
PART = re.compile(r"([\w\[\]-]+)((?: (?:and )?[<>]=? [\d.]+)*)")  # of a type
LINE = re.compile(r"( *)(\w+):(?:.*?\s# (.*)|.*)")  # an option, with its comment
MISSING = object()

AFTER_STEP = "after step "  # a note on the error that ended a run; the number follows
LOADER = "framework.data.dataloader.loader_source"
DALI = "framework.data.dali.dali_source"
CLASS = re.compile(r"(\w+\.)+[A-Z]\w*")  # a dotted name such as mine.Clips
UNITS_S = {"d": 86400, "h": 3600, "m": 60, "s": 1}  # of stop.after
PROFILE = "profile"  # the folder of debug=profile's traces

# The parts of a run, each with a _target_. A plain order has none: it is built in.
PARTS = (
    *("loader", "parallel", "precision", "model", "objective", "optim", "schedule"),
    *("transform", "augment"),
)
BLOCKS = ("order", "workers", "checkpoint", "resume", "init", "best", "stop")  # all keys are ours
NAMED = ("sink", "metrics", "watchers")  # blocks of parts by name, which may be empty
GROUPS = ("data", *PARTS, *NAMED, *BLOCKS)
# Groups whose files say the types of keys that only some choices have.
TYPED = ("order", "optim", "schedule", "loader", "parallel", "data", "sink")
NAME = re.compile(r"[A-Za-z_]\w*")  # of a metric or a validation set, without a dot
LIBRARIES = ("framework.", "torch.")  # those whose keys the files of the groups describe


class Rule(NamedTuple):
    """The values of one option. Numbers are finite, whatever their limits."""

    kind: Any  # the type, or a union of types
    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf  # numbers must be greater
    below: float = math.inf  # numbers must be less
    choices: Sequence[str] = ()  # the only texts that are allowed, if any
    means: str = ""  # what the values are, for messages, if the type does not say it
    number: int = 101  # of the ConfigError for every other value
    help: str = ""  # what the option does, for messages

    @property
    def kinds(self) -> tuple[Any, ...]:
        return self.kind.__args__ if isinstance(self.kind, UnionType) else (self.kind,)

    @property
    def words(self) -> str:
        """What a value must be, such as ``a whole number from 0 to 9, or null``."""
        limits = {"of at least": self.least, "above": self.above, "below": self.below}
        known = [f"{word} {limit:g}" for word, limit in limits.items() if math.isfinite(limit)]
        limit = " " + " and ".join(known) if known else ""
        if math.isfinite(self.least) and math.isfinite(self.most):
            limit = f" from {self.least:g} to {self.most:g}"
        names = [self.means + limit]
        if not self.means:
            words = {**KINDS, int: KINDS[int] + limit, float: KINDS[float] + limit}
            plain = [kind for kind in self.kinds if kind is not NoneType]
            names = [words[kind] for kind in plain if not (kind is str and self.choices)]
            names += self.choices
        text = " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
        if NoneType in self.kinds:
            text += ", or null"
        if self.help and self.kinds[0] in (str, dict, list[str], list[int]) and not self.choices:
            text += f" ({self.help.partition('; ')[0]})"  # the type says little
        return text

    def is_kind(self, value: Any) -> bool:
        """Return whether a value has the type. Only bool takes true and false."""
        if isinstance(value, list):
            lists = [kind.__args__[0] for kind in self.kinds if hasattr(kind, "__args__")]
            return any(all(isinstance(item, kind) for item in value) for kind in lists)
        if isinstance(value, bool):
            return bool in self.kinds
        if isinstance(value, int) and float in self.kinds:
            return True
        return isinstance(value, tuple(kind for kind in self.kinds if type(kind) is type))

    def fits(self, value: Any) -> bool:
        if not self.is_kind(value):
            return False
        if isinstance(value, str) and self.choices:
            return value in self.choices
        if isinstance(value, int | float) and not isinstance(value, bool):
            return self.least <= value <= self.most and self.above < value < self.below
        return True

    def check(self, where: str, value: Any) -> None:
        if not self.fits(value):
            raise self.error(where, value)

    def error(self, where: str, value: Any) -> ConfigError:
        with suppress(ValueError, RecursionError):
            if isinstance(value, str) and self.fits(json.loads(value)):  # such as "0.5"
                decoded = f"""'{where}="${{oc.decode:${{oc.env:NAME}}}}"'"""
                fix = f"leave out its quotes, or decode a variable: {decoded}"
                what = f"must be {self.words}, and is a text"
                return ConfigError(self.number, f'{where} = "{value}"'[:200], what, fix)
        what = f"must be {self.words}{did_you_mean(str(value), self.choices)}"
        return ConfigError(self.number, f"{where} = {value}"[:200], what, "correct it")

    def read(self, where: str, text: str) -> Any:
        """Return the value of a text on the command line. Raise the ConfigError of this option."""
        value: Any = text
        if re.fullmatch(r"'[^']*'|\"[^\"]*\"", text):
            value = text[1:-1]
        if NoneType in self.kinds and value in ("", "null"):
            value = None
        elif bool in self.kinds:
            value = {"true": True, "false": False}.get(text.lower(), value)
        for kind in (int, float):
            if kind in self.kinds and isinstance(value, str):
                with suppress(ValueError):
                    value = kind(value)
        if not self.fits(value):
            raise self.error(where, text)
        return value


@cache
def option_rules(name: str) -> dict[str, Rule]:
    """Return the rules of ``conf/NAME.yaml``, or of all choices of a group, by dotted key."""
    rules: dict[str, Rule] = {}
    for path in (CONF / f"{name}.yaml", *sorted((CONF / name).glob("*.yaml"))):
        if not path.is_file():
            continue
        blocks = [(-1, name)] if path.parent != CONF else []  # around the line, with their indent
        text = path.read_text(encoding="utf-8").partition("\nhydra:")[0]
        for match in filter(None, map(LINE.fullmatch, text.splitlines())):
            indent, key, comment = len(match[1]), match[2], match[3]
            while blocks and blocks[-1][0] >= indent:
                blocks.pop()
            blocks.append((indent, key))
            types, _, explained = (comment or "").partition(": ")
            types, _, number = types.partition(" [C")
            parts = list(filter(None, map(PART.fullmatch, types.split(" | "))))
            names = [part[1] for part in parts]
            is_word = len(names) == 1 and (names[0] not in TYPES or names[0] == "null")
            if len(parts) <= types.count(" | ") or is_word:
                continue  # the comment begins with no type
            signs = re.findall(r"([<>]=?) (\S+)", " ".join(part[2] for part in parts))
            limits: dict[str, Any] = {LIMITS[sign]: float(limit) for sign, limit in signs}
            kind = reduce(operator.or_, [TYPES.get(name, str) for name in names])
            choices = tuple(name for name in names if name not in TYPES)
            error = int(number.rstrip("]") or 101)
            rule = Rule(kind, **limits, choices=choices, number=error, help=explained)
            rules[".".join(block for _, block in blocks)] = rule
    return rules


def check_values(config: Mapping[str, Any], rules: Mapping[str, Rule], prefix: str = "") -> None:
    """Check that every key with a rule is there and has a value that fits. Keys may be dotted."""
    for key, rule in rules.items():
        value: Any = config
        for name in key.split("."):
            value = value.get(name, MISSING) if isinstance(value, Mapping) else MISSING
        rule.check(f"{prefix}{key}", None if value is MISSING else value)
        if value is MISSING:
            raise ConfigError(101, f"{prefix}{key} = null", "was taken away", "leave it in")


def check_known(keys: Mapping[str, Any], known: Sequence[str], prefix: str = "") -> None:
    for key, value in keys.items():
        if key not in known:
            where = f"{prefix}.{key} = {value}".removeprefix(".")
            what = f"no such key{did_you_mean(key, known, prefix)}"
            raise ConfigError(102, where[:200], what, "correct or remove it")


STORES = "the path of a store, or of several by name"
DATA_RULES = {
    "data.train": Rule(str | dict, means=STORES),
    "data.val": Rule(str | dict | None, means=STORES),
}
# Keys of a group of parameters. It may have options of the optimizer, too.
GROUP_RULES: dict[str, Rule] = {
    "match": Rule(str | list[str], means="a name of parameters, or a list of them", number=147),
    "lr": Rule(float, 0, number=147),
    "lr_factor": Rule(float, 0, number=147),
    "until": Rule(float, 0, 1, number=147),
}


def check(config: Config) -> None:
    """Check every option before anything is opened.

    ConfigError C101 for a value that an option cannot have or a missing key or part, C102 for a key
    nobody reads, others for values that exclude or need each other. CheckpointError K110.
    """
    for where, value in walk(config):
        if isinstance(value, float) and math.isnan(value):
            raise ConfigError(101, f"{where} = nan", "not a number", "give one")
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:  # no tensor holds it
            what = "must be a whole number below 2**63"
            raise ConfigError(101, f"{where} = {value}"[:100], what, "correct it")
    rules = option_rules("train")
    check_values(config, {key: rules[key] for key in rules if key.split(".")[0] not in GROUPS})
    check_known(config, (*rules, *GROUPS))
    if isinstance(resume := config.get("resume"), str):  # of a command that takes train's words
        what = "does not name a run"
        if not resume:
            raise ConfigError(101, "resume = ''", what, "give the directory of a run")
        fix = "give train the directory of a run, and other commands that run's own words"
        raise ConfigError(196, f"resume = {resume}", what, fix)
    parts: Config = {}
    for group in GROUPS:
        block = config.get(group)
        if block is None and group in NAMED:  # sink=[]: only the summary is written
            continue
        fix = "see the choices with 'paceline train --help'"
        # no choice of data gives these keys
        if block is None or (group == "data" and {*block} <= {"val_transform", "test"}):
            raise ConfigError(101, f"{group} = null", "nothing is chosen", fix)
        if not isinstance(block, dict):
            raise ConfigError(101, f"{group} = {block}"[:200], "is no block of keys", fix)
        if group in PARTS:
            parts[group] = block
        elif group in NAMED:
            parts |= {f"{group}.{name}": part for name, part in block.items()}
    data = config["data"]
    parts["data.source"] = data.get("source")
    for name in ("val_transform", "writer"):
        if data.get(name) is not None:
            parts[f"data.{name}"] = data[name]
    for where, block in parts.items():
        if block is None or (where == "optim" and block.keys() == set(parameter_groups.KEYS)):
            fix = "choose one, see 'paceline train --help', or give a _target_"
            raise ConfigError(101, f"{where} = null", "nothing is chosen", fix)
        if not isinstance(block, dict) or not isinstance(block.get("_target_"), str):
            fix = "choose one, or give it a _target_"
            raise ConfigError(101, f"{where} = {block}"[:200], "describes no part", fix)
    check_values(config, {key: rules[key] for key in rules if key.split(".")[0] in GROUPS})
    check_values(config, DATA_RULES)
    _check_choices(config)
    _check_data(data)
    _check_together(config)
    _check_optim(config["optim"])
    _check_validation(config)
    _check_init(config["init"], config["resume"]["run"] is not None)


def _check_choices(config: Config) -> None:
    """Check the keys of the chosen parts, and that blocks without a part have no others."""
    for group in TYPED:
        for key, rule in option_rules(group).items():
            *path, last = key.split(".")
            block: Any = config
            is_ours = True
            for name in path:
                block = block.get(name) if isinstance(block, dict) else None
                target = block.get("_target_") if isinstance(block, dict) else None
                is_ours = is_ours and (target is None or str(target).startswith(LIBRARIES))
            if isinstance(block, dict) and last in block and is_ours:
                rule.check(key, block[last])
    for group in BLOCKS:
        if "_target_" not in config[group]:  # a part has arguments of its own
            names = [key.split(".") for key in option_rules("train")]
            own = [name[1] for name in names if name[0] == group] or PLAIN_ORDER
            check_known(config[group], own, group)


def _check_data(data: Config) -> None:
    makes = makes_data(data)
    given = {"train": data["train"]}
    for key in ("val", "test"):
        sets = val_sets(data, key)
        if sets != {"": data.get(key)}:
            _check_names(f"data.{key}", sets)
        given |= {split_of(name, key): own for name, own in sets.items()}
    for split, own in given.items():
        where = f"data.{split} = {own}"
        is_object = isinstance(own, dict) and "_target_" in own
        if makes and own is not None and not is_object:
            what = "must say how to make it, since this choice reads an object of yours"
            name = own if isinstance(own, str) and CLASS.fullmatch(own) else "mine.Clips"
            raise ConfigError(233, where, what, f"give 'data.{split}={{_target_: {name}}}', say")
        mixes = not is_object and "weights" in data["source"]
        if isinstance(own, dict) and not makes and not mixes:
            fix = "for several stores by name add data=mixture"
            if is_object:
                fix = "for a Dataset of your own add data=dataset, for a DataLoader data=dataloader"
            raise ConfigError(233, where, "must be the path of a store", fix)


def _check_together(config: Config) -> None:
    method, kind = config["workers"]["start_method"], config["workers"]["kind"]
    are_threads = kind == "thread" or (kind is None and not makes_data(config["data"]))
    if method is not None and are_threads:
        where = f"workers.start_method = {method}"
        raise ConfigError(107, where, "threads are not started so", "add workers.kind=process")
    parallel = config["parallel"]
    is_sharded = parallel["_target_"].endswith(".ShardedParallel")
    if is_sharded and config["precision"].get("dtype") == "fp16":
        what = "parallel=fsdp cuts gradients into parts, and each rank would scale its own"
        raise ConfigError(139, "precision.dtype = fp16", what, "choose bf16")
    if "virtual_ranks" in parallel:
        if config["accumulate"] != 1:
            what = "parallel=virtual takes a pass for each of its virtual ranks"
            fix = "leave it out, and raise parallel.virtual_ranks"
            raise ConfigError(144, f"accumulate = {config['accumulate']}", what, fix)
        num_processes = parallel.get("num_processes", 1) * parallel.get("num_nodes", 1)
        if {"RANK", "WORLD_SIZE"} <= os.environ.keys():  # torchrun has started the processes
            num_processes = int(os.environ["WORLD_SIZE"])
        check_virtual_ranks(parallel["virtual_ranks"], num_processes)
    fold, folds = config["fold"], config["folds"]
    if (fold is None) != (folds is None):
        where = f"fold = {fold}, folds = {folds}"
        raise ConfigError(205, where.replace("None", "null"), "need each other", "give both")
    if config["fold_by"] is not None and folds is None:
        where = f"fold_by = {config['fold_by']}"
        raise ConfigError(205, where, "there are no folds", "give fold=0 folds=5, say")
    if folds is not None and fold >= folds:
        what = f"folds are numbered from 0 to {folds - 1}"
        raise ConfigError(205, f"fold = {fold}", what, "choose one of them")
    schedule = config["schedule"]
    if schedule.get("warmup_steps") and schedule.get("warmup_epochs") is not None:
        what = f"and schedule.warmup_steps = {schedule['warmup_steps']} exclude each other"
        where = f"schedule.warmup_epochs = {schedule['warmup_epochs']}"
        raise ConfigError(313, where, what, "give one of them")
    for key, value in (("ema_every", 1), ("ema_ramp", 0), ("ema_lookahead", False)):
        if config["ema_decay"] is None and config[key] != value:
            what = "no average of the weights is kept without ema_decay"
            fix = "set ema_decay, to 0.95 for example"
            raise ConfigError(148, f"{key} = {config[key]}", what, fix)
    block = config["compile"]
    if isinstance(block, dict):
        _check_compile(block)
    else:
        block = {"mode": block}
    if config["cuda_graph"] and block.get("mode") in ("reduce-overhead", "max-autotune"):
        what = "captures graphs of the model, and cuda_graph=true captures the whole step"
        fix = "choose max-autotune-no-cudagraphs, or leave out cuda_graph"
        raise ConfigError(387, f"compile = {block['mode']}", what, fix)
    if isinstance(config["freeze"], dict):
        step = Rule(int | None, 1, number=312)
        for name, value in config["freeze"].items():
            step.check(f"freeze.{name}", value)


def _check_compile(block: Config) -> None:
    """Check the block ``compile``. ConfigError C102, C387. torch checks the names of options."""
    rules = {
        "mode": option_rules("train")["compile"]._replace(kind=str | None),
        "dynamic": Rule(bool | None, number=387),
        "fullgraph": Rule(bool, number=387),
        "options": Rule(dict | None, number=387, means="a block with options of torch._inductor"),
    }
    check_known(block, tuple(rules), "compile")
    for key, value in block.items():
        rules[key].check(f"compile.{key}", value)
    options = block.get("options") or {}
    if not block or (options and block.get("mode") is not None):
        fix = "give compile=true, a mode, or options"
        raise ConfigError(387, f"compile = {block}"[:200], "must have a mode or options", fix)
    for key, value in options.items():
        if not isinstance(value, bool | int | float):
            what = "must be true, false or a number, since a text may name a program"
            raise ConfigError(387, f"compile.options.{key} = {value}"[:200], what, "leave it out")


def _check_optim(optim: Config) -> None:
    if optim.get("scaling", "none") != "none" and optim.get("reference_batch_size") is None:
        what = "the batch size that optim.lr is meant for is missing"
        fix = "give the batch size that optim.lr is right for"
        raise ConfigError(135, "optim.reference_batch_size = null", what, fix)
    _check_groups("optim", optim)
    rules = option_rules("train")
    for name, part in (optim.get(parameter_groups.PARTS) or {}).items():
        where = f"optim.parts.{name}"
        if not isinstance(part, dict) or "match" not in part or not NAME.fullmatch(str(name)):
            what = "is no part with a name of letters that says which parameters it has"
            fix = "give it match, the names of its parameters, as in {critic: {match: 'D.*'}}"
            raise ConfigError(362, f"{where} = {part}"[:200], what, fix)
        if name == parameter_groups.OTHERS:
            what = "is the name of the parameters that no part has"
            raise ConfigError(362, where, what, "rename it")
        for key in GROUP_RULES.keys() & part.keys():
            GROUP_RULES[key].check(f"{where}.{key}", part[key])
        for key in part.keys() & set(parameter_groups.KEYS):
            if key not in parameter_groups.PART_KEYS:
                raise ConfigError(362, f"{where}.{key}", "is not for a part", f"set optim.{key}")
            rules[f"optim.{key}"].check(f"{where}.{key}", part[key])
        _check_groups(where, part)


def _check_groups(place: str, optim: Config) -> None:
    for name, group in parameter_groups.named_groups(optim.get("groups")).items():
        where = f"{place}.groups.{name}"
        if not isinstance(group, dict) or "match" not in group:
            what = "does not say which parameters it has"
            fix = "give it match, the names of its parameters, as in {match: '*.bias', until: 0.5}"
            raise ConfigError(147, f"{where} = {group}"[:200], what, fix)
        for key in GROUP_RULES.keys() & group.keys():
            GROUP_RULES[key].check(f"{where}.{key}", group[key])
        if {"lr", "lr_factor"} <= group.keys():
            what = f"has a factor on {place}.lr, too"
            raise ConfigError(147, f"{where}.lr = {group['lr']}", what, "give one of them")


def _check_names(where: str, names: Iterable[Any]) -> None:
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            what = "must be letters, digits and underscores, since it is part of a metric's name"
            raise ConfigError(330, f"{where}.{name}", what, "rename it")


def _check_validation(config: Config) -> None:
    metrics = config.get("metrics") or {}
    _check_names("metrics", metrics)
    stop = config["stop"]
    if stop["after"] is not None:
        seconds_of("stop.after", stop["after"])
    num_best = config["checkpoint"]["keep_best"]
    wanted = {
        "metrics": ", ".join(metrics) or None,
        "best.metric": config["best"]["metric"],
        "stop.metric": stop["metric"],
        "stop.patience": stop["patience"],
        "validate_first": "true" if config["validate_first"] else None,
        "checkpoint.keep_best": num_best if num_best > 1 else None,
    }
    for key, value in wanted.items():
        if value is not None and not val_sets(config["data"]) and config["folds"] is None:
            what = "looks at the validation, and there is none"
            raise ConfigError(335, f"{key} = {value}", what, "give data.val, or leave it out")
    if stop["metric"] is not None and stop["patience"] is None:
        fix = "add stop.patience=5, the validations to wait for a better one"
        raise ConfigError(336, f"stop.metric = {stop['metric']}", "never stops a run", fix)
    if stop["min_delta"] and stop["metric"] is None:
        what = "is not used without a metric"
        fix = "add stop.metric=NAME, the metric that it is about"
        raise ConfigError(336, f"stop.min_delta = {stop['min_delta']}", what, fix)
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


def _check_init(init: Config, is_resumed: bool) -> None:
    for old, new in (init["rename"] or {}).items():
        if not isinstance(old, str) or not isinstance(new, str):
            fix = "give names of modules or tensors, as in 'init.rename={fc: head}'"
            raise ConfigError(301, f"init.rename = {{{old}: {new}}}"[:200], "is no name", fix)
    for key, value in (("average", True), ("skip", []), ("rename", None)):
        if init["weights"] is None and init[key] != value:
            what = "no weights are read without init"
            fix = "add init=FILE, a file of weights or the directory of a run"
            raise ConfigError(301, f"init.{key} = {init[key]}"[:200], what, fix)
    if init["weights"] == "":
        raise ConfigError(301, "init = ''", "names no file", "give one, or leave init out")
    if init["weights"] is not None and not is_resumed:  # a resumed run has its weights
        check_weights_path(init["weights"])
