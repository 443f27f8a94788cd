"""The options of a command without groups of choices: a dataclass, set by words ``key=value``."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, field, fields
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from framework.cli.outcome import RunOutcome, told
from framework.config.schema import Rule
from framework.errors import ConfigError, did_you_mean

T = TypeVar("T")
COMPLETION = ("-sc", "--shell-completion")


def option(default: Any = MISSING, about: str = "", *, key: str = "", **rule: Any) -> Any:
    """Return the field of an option, which must be given if it has no default.

    ``about`` is its line of ``--help``, ``key`` its key if that is not the field's name, and
    ``rule`` what ``Rule`` takes beside the type, such as ``least=1`` or ``choices=("a", "b")``.
    """
    metadata = {"about": about, "key": key, "rule": rule}
    if isinstance(default, list):
        return field(default_factory=partial(list, default), metadata=metadata)
    return field(default=default, metadata=metadata)


def rules_of(kind: type) -> dict[str, Rule]:
    """Return the rule of each option of a dataclass by its key."""
    hints = get_type_hints(kind)
    return {_key(f): Rule(hints[f.name], **f.metadata["rule"]) for f in fields(kind)}


def run_options(
    command: str,
    words: Sequence[str],
    kind: type[T],
    action: Callable[[T, Path], RunOutcome],
    plain: str = "",
) -> int:
    """Run a command with the options that its words set, and return the exit code.

    The docstring of ``kind`` heads the page of ``--help``. The action gets a directory below
    ``outputs/``, which it makes if it writes. Words without ``=`` stand for the key ``plain``.
    """
    if words[:1] and words[0] in COMPLETION:
        begun = os.environ.get("COMP_LINE", "").rpartition(" ")[2]
        print(" ".join(f"{key}=" for key in rules_of(kind) if key.startswith(begun)))
        return 0
    if "--help" in words or "-h" in words:
        print(_help_text(command, kind, plain))
        return 0
    options = read_options(command, words, kind, plain)
    return told(partial(action, options), Path("outputs", command, time_stamp()))


def time_stamp() -> str:
    """Return DATE/TIME-PID, which differs for two commands that start at the same time."""
    return f"{datetime.now():%Y-%m-%d/%H-%M-%S.%f}-{os.getpid()}"  # noqa: DTZ005  # the user's own clock


def read_options(command: str, words: Sequence[str], kind: type[T], plain: str = "") -> T:
    """Return the options that ``words`` set.

    ConfigError C100 (plain words), C102 (unknown key), C103 (missing key), C124 (unknown
    ``--option``), or the number of an option's rule.
    """
    rules = rules_of(kind)
    given: dict[str, Any] = {}
    texts: list[str] = []
    for word in words:
        key, sign, value = word.partition("=")
        flag = rules.get(key.removeprefix("--"))
        if word.startswith("--") and flag is not None and flag.kind is bool and not sign:
            given[key.removeprefix("--")] = True
        elif word.startswith("-"):
            what = f"no such option{did_you_mean(key, ['--help', '--json'])}"
            raise ConfigError(124, key, what, "see --help; keys are given as key=value")
        elif not sign or os.path.exists(word):  # a path may have "=" in its name
            texts.append(word)
        elif key not in rules:
            what = f"no such key{did_you_mean(key, list(rules))}"
            raise ConfigError(102, key, what, f"see 'paceline {command} --help'")
        else:
            given[key] = _value(rules[key], key, value)
    where = " ".join(texts)
    if texts and not plain:
        fix = f"see 'paceline {command} --help'"
        raise ConfigError(100, where, "is neither an option nor key=value", fix)
    if texts and plain in given:
        raise ConfigError(100, where, f"stands beside {plain}=", "give one or the other")
    if texts and rules[plain].kind == list[str]:
        given[plain] = texts
    elif texts:
        given[plain] = texts[0]
        if len(texts) > 1:
            fix = f"{command} one at a time"
            raise ConfigError(100, where, f"names more than one {plain}", fix)
    missing = [key for key, default in _defaults(kind).items() if default == "???"]
    if missing := [key for key in missing if key not in given]:
        fix = f"add {' '.join(f'{key}=...' for key in missing)}"
        raise ConfigError(103, ", ".join(missing), "must be given", fix)
    return kind(**{f.name: given[_key(f)] for f in fields(kind) if _key(f) in given})  # pyright: ignore[reportArgumentType]


def _value(rule: Rule, key: str, text: str) -> Any:
    """Return the value of a text. A text that an option may have is taken literally."""
    if text[:1] not in ("[", "{") or set(rule.kinds) <= {str, type(None)}:
        return rule.read(key, text)
    try:
        config = OmegaConf.from_dotlist([f"value={text}"])
        value: Any = OmegaConf.to_container(config, resolve=False)
    except (YAMLError, OmegaConfBaseException) as error:
        raise rule.error(key, text) from error
    rule.check(key, value["value"])
    return value["value"]


def _key(of: Field[Any]) -> str:
    return of.metadata["key"] or of.name


def _defaults(kind: type) -> dict[str, str]:
    """Return the default of each key as YAML has it, and ``???`` if it must be given."""
    defaults: dict[str, str] = {}
    for f in fields(kind):
        default = f.default
        if f.default_factory is not MISSING:
            default = f.default_factory()
        if default is MISSING:
            default = "???"
        defaults[_key(f)] = default if isinstance(default, str) else json.dumps(default)
    return defaults


def _help_text(command: str, kind: type, plain: str) -> str:
    shown = plain.upper()
    if plain and rules_of(kind)[plain].kind == list[str]:
        shown = f"{shown.removesuffix('S')} ..."
    usage = f"usage: paceline {command} {shown} [key=value] ...".replace("  ", " ")
    defaults = _defaults(kind)
    width = max(len(f"{key}: {value}") for key, value in defaults.items())
    lines = [usage, "", kind.__doc__ or "", "", "keys"]
    for f in fields(kind):
        setting = f"{_key(f)}: {defaults[_key(f)]}"
        lines.append(f"  {setting:{width}}  # {f.metadata['about']}")
    return "\n".join(lines)
