"""The words of a command line, and what only they may say: which packages are called, and where.

Every command loads this file, so it imports nothing large.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from framework.cli.trusted_folders import trusted_here, was_begun_here
from framework.config.schema import Rule, option_rules
from framework.config.targets import as_prefixes, val_sets
from framework.errors import ConfigError, say
from framework.system.run_dir import is_below, names_no_server, redacted

VARIABLE = "PACELINE_ALLOW_TARGETS"
CONFIG_DIR = ("--config-dir", "-cd")
TAKES_VALUE = (*CONFIG_DIR, "--cfg", "-c", "--explain")
MEANINGS = ("true", "false", "null", "nan", "inf")  # words that Hydra's grammar reads as values
NOT_HYDRAS = ("resume", "resume.run")
TEXTS = ("select", "input.select", "where")  # expressions, whatever letters these hold
SHORT = {"init": "weights"}  # blocks whose name stands for their first key
EXPERIMENT = re.compile(r"^\+?experiment=")  # another word for ``recipes=``
PLACED = {"data.val_transform": "transform@data.val_transform"}  # choices with a key of their own
# blocks of the user's, which need no + although no file has their names
_NAMED = re.compile(r"(metrics|watchers|vars)(\.\w+)?=\{")
_KEY = re.compile(r"\+{0,2}[A-Za-z_][\w./@-]*")
# Letters that Hydra's grammar does not know in a bare value, or takes for calls.
_UNUSUAL = re.compile(r"[^\w.,:/=@+~$%*?|\\-]|[^\x00-\x7f]")


def typed_value(arguments: Sequence[str], *names: str) -> str | None:
    """Return the value of ``--name value`` or ``--name=value``."""
    for number, word in enumerate(arguments):
        if word in names and number + 1 < len(arguments):
            return arguments[number + 1]
        name, equals, value = word.partition("=")
        if equals and name in names:
            return value
    return None


def config_dir_of(arguments: Sequence[str]) -> str | None:
    """Return the folder that ``--config-dir`` names. ConfigError C104 if there is none."""
    config_dir = typed_value(arguments, *CONFIG_DIR)
    if config_dir and not Path(config_dir).is_dir():
        fix = "give a folder that holds recipes/NAME.yaml"
        raise ConfigError(104, f"--config-dir {config_dir}", "no such folder", fix)
    return config_dir or None


def config_flags(config_dir: str | None) -> list[str]:
    """Return ``--config-dir`` and its value, for a command to type; nothing without a folder."""
    return [] if config_dir is None else ["--config-dir", config_dir]


def quoted(value: str) -> str:
    """Return a value as Hydra's override grammar takes it literally."""
    # Only backslashes before a quotation mark, or at the end, are special to Hydra.
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', value)
    trailing = escaped[len(escaped.rstrip("\\")) :]
    return f'"{escaped}{trailing}"'


def block_words(value: Any) -> str:
    """Return a plain value as Hydra's override grammar reads it, such as ``{a: [1, "x"]}``."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {block_words(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(block_words, value))}]"
    if isinstance(value, str):
        is_word = re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.ASCII) is not None
        return value if is_word and value.lower() not in MEANINGS else quoted(value)
    return json.dumps(value)


def literal(word: str) -> str:
    """Quote the value of an override if Hydra's grammar cannot read it, as in ``x=Größe (1)``.

    Lists, blocks, references, quoted values and the names of files stay as they are.
    """
    word = long_word(word)
    if _NAMED.match(word):
        word = f"++{word}"
    key, equals, value = word.partition("=")
    if key in PLACED and value == "null":
        return f"~{PLACED[key]}"
    if key in PLACED and re.match(r"[\w,]+$", value):
        key = PLACED[key]
        word = f"{key}={value}"
    if not equals or not _KEY.fullmatch(key) or key in NOT_HYDRAS or os.path.exists(word[:4096]):
        return word
    if key in TEXTS and value and not value.startswith(("$", "'", '"')):
        return word if value in MEANINGS else f"{key}={quoted(value)}"
    if value.startswith(("[", "{", "$", "'", '"')) or "," in value or not _UNUSUAL.search(value):
        return word
    from hydra.core.override_parser.overrides_parser import OverridesParser  # noqa: PLC0415  # takes 0.1 s to load
    from hydra.errors import HydraException  # noqa: PLC0415

    try:
        OverridesParser.create().parse_override(word)
    except HydraException:
        return f"{key}={quoted(value)}"
    return word


def long_word(word: str) -> str:
    """Return an override with its whole key, such as ``init.weights=x.pt`` for ``init=x.pt``.

    ``recipes=NAME`` stands for ``experiment=NAME``.
    """
    word = EXPERIMENT.sub("recipes=", word)
    key, equals, value = word.partition("=")
    if not equals or key not in SHORT or value.startswith("{"):
        return word
    if os.path.exists(value):  # the directory of a run may have commas in its name
        value = quoted(value)
    return f"{key}.{SHORT[key]}={value}"


def without_options(arguments: Sequence[str]) -> list[str]:
    """Return the words that are neither options nor options' values."""
    pairs = zip(["", *arguments], arguments, strict=False)
    return [w for before, w in pairs if not w.startswith("-") and before not in TAKES_VALUE]


def with_run(arguments: list[str], command: str) -> list[str]:
    """Return the words with ``run=`` for the plain word, which is a path.

    A plain word is neither an option nor an override, or it is the name of a file. ConfigError C100
    for several, or for one beside ``run=``.
    """
    if arguments[:1] == ["-sc"]:
        return arguments
    plain = [word for word in without_options(arguments) if "=" not in word or os.path.exists(word)]
    overrides = [word for word in arguments if word not in plain]
    if plain and any(word.startswith("run=") for word in overrides):
        raise ConfigError(100, " ".join(plain), "stands beside run=", "give one or the other")
    if len(plain) > 1:
        fix = f"{command} one at a time"
        raise ConfigError(100, " ".join(plain), "names more than one run", fix)
    return [*overrides, *(f"run={quoted(word)}" for word in plain)]


def with_output(arguments: list[str]) -> list[str]:
    """Return the words with ``output.path=`` for ``output=``, which Hydra takes for a group."""
    return [re.sub(r"^output=", "output.path=", word) for word in arguments]


class CommandWords(NamedTuple):
    own: dict[str, str]  # the texts of the command's keys
    others: list[str]  # in order, without ``--config-dir``
    config_dir: str | None  # the folder that ``--config-dir`` names


def split_words(arguments: Sequence[str], keys: Collection[str]) -> CommandWords:
    """Separate words ``key=value`` with a key in ``keys`` from the others. ConfigError C104."""
    own: dict[str, str] = {}
    others: list[str] = []
    for previous, word in zip(["", *arguments], arguments, strict=False):
        key, equals, value = word.partition("=")
        if equals and key in keys:
            own[key] = value
        elif key not in CONFIG_DIR and previous not in CONFIG_DIR:
            others.append(word)
    return CommandWords(own, others, config_dir_of(arguments))


def read_keys(own: Mapping[str, str], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the values of a command's keys. Raise the ConfigError of a key's rule."""
    return {key: rules[key].read(key, text) for key, text in own.items()}


def check_output(path: str | None, number: int) -> None:
    """Raise the ConfigError of this number if no file can be written to ``output=``."""
    if path is None:
        return
    if Path(path).is_dir():
        raise ConfigError(number, f"output = {path}", "is a folder", "give the name of a file")
    if not Path(path).parent.is_dir():
        fix = "make the folder, or choose another path"
        raise ConfigError(number, f"output = {path}", "its folder does not exist", fix)


class Grant(NamedTuple):
    """What the user allowed, noted before Hydra runs, since a file may set the environment."""

    keys: frozenset[str]  # that were typed
    exported: str  # the packages in the environment variable
    trusted: tuple[str, ...] = ()  # the packages of the present folder that the user trusts


def granted(arguments: Sequence[str]) -> Grant:
    """Return what the command line and the environment allow, and what the user trusts here.

    Trust in this folder does not count for files of a ``--config-dir`` elsewhere.
    """
    keys = frozenset(word.partition("=")[0].lstrip("+") for word in arguments)
    folder = typed_value(arguments, *CONFIG_DIR)
    trusted = trusted_here() if folder is None or is_below(os.path.join(folder, "x")) else ()
    return Grant(keys, os.environ.get(VARIABLE, ""), trusted)


def allowed_targets(config: dict[str, Any], grant: Grant) -> tuple[str, ...]:
    """Return what a ``_target_`` may begin with, beyond ours. ConfigError C105, C207.

    What the user trusts here does not count for a run that was begun elsewhere.
    """
    given = config.get("allow_targets") or []
    option_rules("train")["allow_targets"].check("allow_targets", given)
    if given and "allow_targets" not in grant.keys:
        what = "set by a configuration file, which must not allow itself anything"
        fix = f"give it on the command line, or by {VARIABLE}"
        raise ConfigError(105, f"allow_targets = {given}", what, fix)
    places: dict[str, Any] = {}  # to write, and servers, by the key that names each
    for name, block in (config.get("sink") or {}).items():
        if isinstance(block, dict):
            places[f"sink.{name}.uri"] = block.get("uri")
    output, data, parallel = (config.get(name) for name in ("output", "data", "parallel"))
    if isinstance(output, dict) and ("_target_" in output or "output" not in grant.keys):
        places["output.path"] = output.get("path")
    if config.get("prepare") and isinstance(data, dict):
        sets = (data.get("train"), *val_sets(data).values(), *val_sets(data, "test").values())
        if not all(os.path.exists(path) for path in sets if isinstance(path, str)):
            places["dataset"] = config.get("dataset")
    if isinstance(parallel, dict):
        places["parallel.endpoint"] = parallel.get("endpoint")
    for key, place in places.items():
        if key not in grant.keys and place is not None and not names_no_server(str(place)):
            what = "named by a file, which may name no server, and places below this folder alone"
            word = shlex.quote(f"{key}={quoted(redacted(str(place)))}")
            fix = f"if you trust it, add {word} on the command line"
            raise ConfigError(207, f"{key} = {redacted(place)}", what, fix)
    resume, run, trusted = config.get("resume"), config.get("run"), grant.trusted
    if isinstance(resume, dict):
        run = resume.get("run")
    if trusted and run is not None and not was_begun_here(str(run)):
        say(f"note: {run} was not begun here, so that 'paceline trust' does not count", sys.stderr)
        trusted = ()
    allowed = as_prefixes([*map(str, given), *grant.exported.split(","), *trusted])
    find_packages(allowed)
    return allowed


def find_packages(allowed: Sequence[str]) -> None:
    """Let this process import the user's packages from the present directory, if any."""
    if allowed and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
