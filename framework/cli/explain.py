"""Explain a command: the page of ``--help``, an error of Hydra's in one line, what sets a key."""

import json
import re
import shlex
from collections.abc import Generator, Sequence
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any

import yaml
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework import errors
from framework.cli import precedence
from framework.cli.arguments import quoted
from framework.cli.hydra_session import hydra_session, own_folders
from framework.cli.other_words import VALUES, advice, our_words
from framework.config.schema import DATA_RULES, option_rules
from framework.config.targets import CONF, ROOT, parameters_of
from framework.system.run_dir import flat
from framework.system.user_code import pip_install

Words = Sequence[str]
MOST_LINES = 80  # of a page without its choices' keys; a longer one is shortened
COLUMNS = 100
# The keys that a shortened page explains; it only names the others.
EVERYDAY = (
    *("data.train", "data.val", "dataset", "source", "epochs", "max_steps", "batch_size"),
    *("optim.lr", "accumulate", "clip_norm", "ema_decay", "seed", "device", "compile", "limit"),
    *("workers.num", "validate_every", "checkpoint.every_steps", "stop.patience", "resume.run"),
    *("init.weights", "allow_targets"),
)
# Hydra says "load" for one of a list, as in sink=[consle]
UNKNOWN_CHOICE = re.compile(r"Could not (?:find|load) '([^']+)'")
UNKNOWN_KEY = re.compile(
    r"Could not (?:override|append to config|delete from config)[^']*'([^']+)'"
)
# Where the path belongs that is given as a choice by mistake.
PATH_KEYS = {"data": "data.train", "input": "input.path", "output": "output.path"}
RENAMED = "is called differently here"
# Plugins of Hydra, and the extra that has each.
PLUGINS = {"optuna": "optuna", "ray": "ray", "submitit_local": "slurm", "submitit_slurm": "slurm"}
HEADER = """usage: paceline {command} [group=choice] [key=value] ...

  -m                a sweep: every combination of comma-separated values (key=a,b)
  --help            this page; with group=choice also the keys of that choice
  --help all        every choice and every key, each on a line of its own
  --cfg job         print the configuration and stop
  --cfg job --resolve     print the configuration with every ${{...}} resolved
  --explain KEY     print what sets KEY, or each key below it: a file or a word of the command line
  --config-dir DIR  also offer those of a folder: DIR/recipes/NAME.yaml, DIR/model/NAME.yaml, ...

Your own choices are found here, in recipes/NAME.yaml, conf/model/NAME.yaml, ...{words}
"""


def help_text(command: str, config_dir: str | None, arguments: Words = ()) -> str:
    """Return every group, which is a folder of files, every choice with its file's first comment,
    the keys of the command, and the keys of every choice that ``arguments`` name.

    A page of more than ``MOST_LINES`` lines is shortened unless ``all`` is one of the arguments.
    """
    choices: dict[str, dict[str, str]] = {}  # the text of each file, by group and choice
    for group in _groups(command):
        ours = (ROOT / group, CONF / group)
        for folder in (*ours, *map(Path, own_folders(group, config_dir))):
            for path in sorted(filter(Path.is_file, folder.glob("*.yaml"))):
                choices.setdefault(group, {})[path.stem] = path.read_text("utf-8", "replace")
    # the block between ``# keys`` and ``hydra:``
    text = (CONF / f"{command}.yaml").read_text(encoding="utf-8").split("\n# keys\n", 1)[1]
    text = text.split("\nhydra:", 1)[0]
    words = ""
    if command == precedence.TRAIN:
        words = "\nexperiment=NAME is another word for recipes=NAME."
    page = HEADER.format(command=command, words=words).splitlines()
    whole = [*page, "", *_whole_page(command, choices, text)]
    if len(whole) > MOST_LINES and "all" not in arguments:
        whole = [*page, "", *_short_page(command, choices, text)]
    whole += _keys_of_choices(choices, arguments)
    return re.sub(r" \[C\d+\]", "", "\n".join(whole))  # numbers of errors


def _whole_page(command: str, choices: dict[str, dict[str, str]], text: str) -> list[str]:
    page: list[str] = []
    for group, texts in choices.items():
        width = max(map(len, texts))
        page.append(group)
        for name, choice in texts.items():
            default = " (default)" * (name in _groups(command)[group])
            page.append(f"  {name:{width}}  {_first_comment(choice)}{default}")
        page.append("")
    return [*page, "keys", *(f"  {line}" for line in text.splitlines() if line.strip())]


def _short_page(command: str, choices: dict[str, dict[str, str]], text: str) -> list[str]:
    """Return the names of all choices and keys, and what the everyday keys are for."""
    page = ["groups and their choices, with a * behind the default"]
    settings: dict[str, Any] = flat(yaml.safe_load(text))
    explained = [key for key in EVERYDAY if key in settings]
    width = max(map(len, choices))
    for group, texts in choices.items():
        defaults = _groups(command)[group]
        for name in filter(texts.get, defaults):
            own = flat({group: yaml.safe_load(texts[name])})
            explained += [key for key in EVERYDAY if key in own]
            settings = own | settings
        names = " ".join(errors.printable(name) + "*" * (name in defaults) for name in texts)
        page += wrap(f"  {group:{width}}  {names}", COLUMNS, subsequent_indent=" " * (width + 4))
    page += ["", "keys and their defaults"]
    rules = {**DATA_RULES, **option_rules("optim"), **option_rules(command)}
    lines = {key: f"{key}: {_shown(settings[key])}" for key in EVERYDAY if key in explained}
    width = max(map(len, lines.values()))
    for key, setting in lines.items():
        about = (rules[key].help or rules[key].means).partition("; ")[0]
        page.append(f"  {setting:{width}}  {about}")
    more = [key for key in flat(yaml.safe_load(text)) if key not in explained]
    names = wrap(" ".join(more), COLUMNS, initial_indent="  ", subsequent_indent="  ")
    return [*page, "", "more keys, which --help all explains", *names]


def _keys_of_choices(choices: dict[str, dict[str, str]], arguments: Words) -> list[str]:
    shown: list[str] = []
    for group, texts in choices.items():
        named: dict[str, None] = {}  # by the words: two for ``sink=[console,jsonl]``
        for word in arguments:
            key, _, value = word.lstrip("+").partition("=")
            if key == group:
                named |= dict.fromkeys(each.strip(" '\"") for each in value.strip("[]").split(","))
        for name in named:
            title = f"\n{group}={errors.printable(name)}: "
            lines = texts.get(name, "").splitlines()
            keys = [own for own in lines if own.strip() and not own.startswith(("#", "_target_:"))]
            if keys:
                shown.append(title + _first_comment(texts[name]))
                # A recipe's keys are top-level. The keys of any other choice belong to its group.
                if "# @package _global_" not in lines:
                    keys = [f"{group}:", *(f"  {own}" for own in keys)]
                shown += [f"  {errors.printable(own)}" for own in keys]
            elif name in texts:
                shown.append(f"{title}has no keys")
            elif name not in ("", "null"):
                shown.append(f"{title}no such choice{errors.did_you_mean(name, list(texts))}")
    return shown


def _first_comment(text: str) -> str:
    comment = re.search(r"^#(?! @package)(.*)", text, re.MULTILINE)
    return errors.printable(comment[1].strip()) if comment else ""


def _groups(command: str) -> dict[str, list[str]]:
    """Return the groups in the order of the defaults list, each with its default choices."""
    groups: dict[str, list[str]] = {}
    for entry in yaml.safe_load((CONF / f"{command}.yaml").read_text(encoding="utf-8"))["defaults"]:
        for group, choices in entry.items() if isinstance(entry, dict) else ():
            if not group.startswith("override "):
                groups[group] = choices if isinstance(choices, list) else [choices]
    return groups


@contextmanager
def explained(
    command: str, words: Words, config_dir: str | None, own_keys: Words = ()
) -> Generator[None]:
    """Turn an error of Hydra's into its ConfigError. The command also takes ``own_keys``."""
    try:
        yield
    except errors.PacelineError:
        raise
    except Exception as error:  # a file can make Hydra raise anything
        raise explain(command, words, error, config_dir, own_keys) from error


def explain(
    command: str, arguments: Words, error: Exception, config_dir: str | None, own_keys: Words = ()
) -> errors.PacelineError:
    """Return a ConfigError: C100 grammar, C102 key, C104 choice or recipe; R112 for a plugin."""
    text = str(error)
    for word in arguments if command == "train" else ():
        key, _, value = word.partition("=")  # a group of ours, such as precision=16
        if key in _groups(command) and value in VALUES.get(key, ()):
            fix = advice(our_words(key, value))
            return errors.ConfigError(104, f"{key} = {value}", RENAMED, fix)
    if match := UNKNOWN_CHOICE.search(text):
        name = match[1]
        group, _, choice = name.partition("/")
        if group not in _groups(command):  # hydra/launcher
            group, _, choice = name.rpartition("/")
        if not group:
            fix = f"see 'paceline {command} --help'"
            return errors.ConfigError(104, name, "no such configuration", fix)
        where = f"{group} = {choice}"
        if group in ("hydra/launcher", "hydra/sweeper") and choice in PLUGINS:
            what = "is of a package that is not installed"
            return errors.ResourceError(112, where, what, pip_install(PLUGINS[choice]))
        choices = known_choices(command, group, config_dir)
        fix = f"choose {', '.join(choices)}" if choices else "see --help for the groups"
        if group in PATH_KEYS and {".", "/"} & set(choice):
            fix = f"give a path as {PATH_KEYS[group]}={choice}; {fix}"
        if group == "recipes" and config_dir is None:
            fix = f"write {name}.yaml, or add --config-dir DIR if it lies in DIR; {fix}"
        what = f"no such choice{errors.did_you_mean(choice, choices)}"
        return errors.ConfigError(104, where, what, fix)
    if match := UNKNOWN_KEY.search(text):
        key = match[1]
        if "@" in key and not key.startswith(("+", "~")):
            fix = f"put a + before it: +{key}=CHOICE"
            return errors.ConfigError(102, key, "is not there to be replaced", fix)
        name = key.lstrip("+~").split("@")[0]
        return unknown_key(command, arguments, name, config_dir, own_keys)
    if not isinstance(error, HydraException | OmegaConfBaseException | ValueError):
        text = f"{type(error).__name__} {text}"
    what = " ".join(f"{text} {error.__cause__ or ''}".split())[:300]
    fix = "correct the words, or the files that they name"
    parser = OverridesParser.create()
    for word in arguments:
        key, sign, value = word.partition("=")
        if not sign or word.startswith("-"):
            continue
        with suppress(HydraException, RecursionError):
            if not parser.parse_override(word).is_sweep_override():
                continue
        fix = f"to give it as text, quote the value: {shlex.quote(f'{key}={quoted(value)}')}"
        break
    return errors.ConfigError(100, f"paceline {command}", what, fix)


def unknown_key(
    command: str, arguments: Words, key: str, config_dir: str | None, own_keys: Words = ()
) -> errors.ConfigError:
    """Return the ConfigError C102 for a key that is not there, with the nearest one."""
    groups = _groups(command)
    config = _chosen(command, arguments, config_dir)
    known = [*groups, *_flat(config)] if config else []
    if key in known:  # it takes no such value
        changes = [word for word in arguments if word.startswith(("+", "~"))]
        if any(re.split("[=@]", word.lstrip("+~"))[0] == key for word in changes):
            what = "is there, and has another value than the line says"
            return errors.ConfigError(102, key, what, "leave out the + or ~: key=value sets it")
        if any(word.startswith(f"{key}={{") for word in arguments):
            what = "the block there lacks one of the keys"
            fix = f"put ++ before it: ++{key}={{NAME: VALUE}}"
            return errors.ConfigError(102, key, what, fix)
        # as data=a.h5, where a command has the block data and not the group
        below = [name for name in known if name.startswith(f"{key}.")]
        return errors.ConfigError(102, key, "is a block of keys", f"give {errors.listed(below)}")
    group = key.partition(".")[0]
    if group in groups:
        files = {path: yaml.safe_load(path.read_bytes()) for path in (CONF / group).glob("*.yaml")}
        having = [path.stem for path, block in files.items() if key in _flat(block, f"{group}.")]
        if having:
            words = " or ".join(f"{group}={name}" for name in sorted(having))
            fix = f"choose {words}, which {'has' if len(having) == 1 else 'have'} it"
            return errors.ConfigError(102, key, f"the chosen {group} has no such key", fix)
    place, _, name = key.rpartition(".")
    block: Any = config
    for part in place.split("."):
        block = block.get(part) if isinstance(block, dict) else None
    if block == {} or place == "vars":  # keys of the user's
        what = f"{place} has no keys yet"
        if block:
            near = [other for other in known if other.startswith("vars.")]
            what = f"vars has no such key{errors.did_you_mean(key, near)}"
        return errors.ConfigError(102, key, what, f"put a + before it: +{key}=VALUE")
    target = block.get("_target_", "") if isinstance(block, dict) else ""
    taken = parameters_of(target)
    if name in taken:
        what = f"is not in the configuration, though {target} takes it"
        return errors.ConfigError(102, key, what, f"put a + before it: +{key}=VALUE")
    typed = next((word for word in arguments if word.lstrip("+~").startswith(f"{key}=")), "")
    value = typed.partition("=")[2]
    if command == "train" and value and (ours := our_words(key, value)):
        return errors.ConfigError(102, f"{key} = {value}", RENAMED, advice(ours))
    known += [*own_keys, *(f"{place}.{other}" for other in taken)]
    hint = errors.did_you_mean(key, known)
    if not hint and "." not in key:
        # A misspelled group is nearer to the groups than to dotted keys.
        hint = errors.did_you_mean(key, [name for name in known if "." not in name])
    fix = f"see 'paceline {command} --help'"
    return errors.ConfigError(102, key, f"no such key or group{hint}", fix)


def known_choices(command: str, group: str, config_dir: str | None) -> list[str]:
    """Return our choices of a group, and the user's; none if Hydra cannot list them."""
    session = hydra_session(command, config_dir)
    with suppress(Exception), redirect_stderr(StringIO()), session as hydra:
        return sorted(hydra.config_loader.get_group_options(group))
    return []


def _chosen(command: str, arguments: Words, config_dir: str | None) -> dict[str, Any]:
    """Return the configuration with the typed choices, or the usual ones, or nothing."""
    groups = tuple(f"{group}=" for group in _groups(command))
    chosen = [word for word in arguments if word.startswith(groups) and "," not in word]
    for words in (chosen, []):  # one of the choices may be what is wrong
        session = hydra_session(command, config_dir)
        with suppress(Exception), redirect_stderr(StringIO()), session:  # without notes
            plain: Any = OmegaConf.to_container(compose(command, words))
            return plain
    return {}


def _flat(node: Any, prefix: str = "") -> list[str]:
    keys: list[str] = []
    if isinstance(node, dict):
        for name, value in node.items():
            keys += [f"{prefix}{name}", *_flat(value, f"{prefix}{name}.")]
    return keys


def print_origins(command: str, arguments: list[str], key: str, config_dir: str | None) -> int:
    """Print every file and word that sets ``key`` or a key below it, and which counts.

    ConfigError C124 for what is no key, C102 for one that is not there.
    """
    if not key or key.startswith("-") or "=" in key:
        fix = f"paceline {command} ... --explain optim.lr"
        raise errors.ConfigError(124, f"--explain {key}".strip(), "needs a key", fix)
    # (key, the file or the word, the value there, why it is dropped), from weak to strong
    origins: list[tuple[str, str, Any, str]] = []
    with explained(command, arguments, config_dir), hydra_session(command, config_dir) as hydra:
        config = compose(command, arguments)
        loader: Any = hydra.config_loader
        for layer in precedence.last().layers:
            for leaf, value in layer.values.items():
                origins.append((leaf, layer.path, value, layer.reasons.get(leaf, "")))
        if precedence.last().without_validation:
            origins.append(("data.val", "data.train is typed without data.val", None, ""))
        for override in OverridesParser.create().parse_overrides(loader.typed(arguments)):
            place = override.key_or_group
            if not loader.is_group(place) and not place.startswith("hydra."):
                given = None if override.is_sweep_override() else override.value()
                for leaf, value in precedence.leaves(given, place):
                    origins.append((leaf, str(override.input_line), value, ""))
    every = precedence.leaves(OmegaConf.to_container(config), "")
    values = {leaf: value for leaf, value in every if f"{leaf}.".startswith(f"{key}.")}
    if not values:
        raise unknown_key(command, arguments, key, config_dir)
    for leaf, value in values.items():
        resolved = ""
        if isinstance(value, str) and "${" in value:
            try:
                resolved = f"  (that is {OmegaConf.select(config, leaf)})"
            except OmegaConfBaseException as error:
                resolved = f"  (cannot be resolved: {str(error).splitlines()[0]})"
        errors.say(f"{leaf} = {_shown(value)}{resolved}")
        own = [origin for origin in origins if origin[0] == leaf]
        counting = next((origin for origin in reversed(own) if not origin[3]), None)
        width = max((len(place) for _, place, _, _ in own), default=0)
        for origin in own:
            _, place, there, dropped = origin
            end = f"  dropped, because of {dropped}" if dropped else ""
            if origin is counting:
                end = "  <- this one counts"
            errors.say(f"  {place:{width}}  {_shown(there)}{end}")
    return 0


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    return str(value)
