"""What Hydra could not compose, in one line, with the nearest thing that exists."""

import re
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.object_type import ObjectType
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli.arguments import option
from framework.cli.help import groups_of
from framework.cli.paths import CONF
from framework.config.targets import did_you_mean
from framework.errors import ConfigError


def explain(command: str, arguments: list[str], error: Exception) -> ConfigError:
    """The ConfigError for an exception of Hydra's: C100 grammar, C102 key, C104 choice or recipe."""
    text = str(error)
    choice = re.search(r"Could not find '([^']+)'", text)
    if choice:
        return _unknown_choice(command, arguments, choice.group(1))
    key = re.search(
        r"Could not (?:override|append to config|delete from config)[^']*'([^']+)'", text
    )
    if key and "@" in key.group(1) and not key.group(1).startswith(("+", "~")):
        return ConfigError(
            102,
            key.group(1),
            "is not there to be replaced",
            f"put a + before it: +{key.group(1)}=CHOICE",
        )
    if key:
        return unknown_key(command, arguments, key.group(1).lstrip("+~").split("@")[0])
    kind = (
        ""
        if isinstance(error, HydraException | OmegaConfBaseException | ValueError)
        else f"{type(error).__name__} "
    )
    words = " ".join(f"{kind}{text} {error.__cause__ or ''}".split())[:300]
    return ConfigError(
        100,
        f"paceline {command}",
        words,
        "quote what the shell or Hydra would take apart: 'key=\"a=b,c\"'",
    )


def _unknown_choice(command: str, arguments: list[str], name: str) -> ConfigError:
    group, _, choice = name.rpartition("/")
    if not group:
        return ConfigError(104, name, "no such configuration", f"see 'paceline {command} --help'")
    options = _options(command, group, option(arguments, "--config-dir", "-cd"))
    fix = f"choose {', '.join(options)}" if options else "see --help for the groups"
    return ConfigError(
        104, f"{group} = {choice}", f"no such choice{did_you_mean(choice, options)}", fix
    )


def unknown_key(command: str, arguments: list[str], key: str) -> ConfigError:
    """The ConfigError C102 for a key that is not there, with the nearest one."""
    known = _keys(command, arguments)
    if key in known:  # '+' adds, '~' takes away what has that value
        return ConfigError(
            102,
            key,
            "is there, and has another value than the line says",
            "leave out the + or ~: key=value sets it",
        )
    others = _choices_with(command, key)
    if others:
        group = key.split(".", maxsplit=1)[0]
        fix = f"choose {' or '.join(f'{group}={name}' for name in others)}, which {'has' if len(others) == 1 else 'have'} it"
        return ConfigError(102, key, f"the chosen {group} has no such key", fix)
    hint = did_you_mean(key, known)
    if (
        not hint and "." not in key
    ):  # a group's name with a letter wrong is nearer to groups than to dotted keys
        hint = did_you_mean(key, [name for name in known if "." not in name])
    return ConfigError(102, key, f"no such key or group{hint}", f"see 'paceline {command} --help'")


def _choices_with(command: str, key: str) -> list[str]:
    """Our choices of the key's group that have it."""
    group, _, name = key.partition(".")
    if group not in groups_of(CONF / f"{command}.yaml") or not name:
        return []
    plain = {
        path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        for path in sorted((CONF / group).glob("*.yaml"))
    }
    return [choice for choice, block in plain.items() if name in _flat(block)]


def _with_hydra(command: str, ask: Any) -> Any:
    """``ask()`` inside an initialized Hydra that knows the same folders."""
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name=command):
            return ask(GlobalHydra.instance())
    except Exception:  # noqa: BLE001  # what is wrong is known already; this is only about a hint
        return []


def _options(command: str, group: str, config_dir: str | None) -> list[str]:
    """Choices of a group: ours, and the user's."""

    def ask(instance: Any) -> list[str]:
        return instance.config_loader().get_group_options(group, ObjectType.CONFIG)

    theirs = [path.stem for path in (Path(config_dir) / group).glob("*.yaml")] if config_dir else []
    return sorted({*_with_hydra(command, ask), *theirs})


def _keys(command: str, arguments: list[str]) -> list[str]:
    """Every dotted key of the command's configuration, and its groups, with the choices of the command line where they compose."""

    def ask(_: Any) -> list[str]:
        groups = groups_of(CONF / f"{command}.yaml")
        chosen = [
            word
            for word in arguments
            if "=" in word and word.split("=")[0] in groups and "," not in word
        ]
        try:
            config = compose(command, chosen)
        except Exception:  # noqa: BLE001
            config = compose(command)
        return [*groups, *_flat(OmegaConf.to_container(config))]

    return _with_hydra(command, ask)


def _flat(node: Any, prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, value in node.items() if isinstance(node, dict) else ():
        place = f"{prefix}{name}"
        keys += [place, *_flat(value, f"{place}.")]
    return keys
