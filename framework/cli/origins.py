"""``--explain KEY``: every file and word that sets a key, from weak to strong, and which counts."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from framework.cli import precedence
from framework.cli.explain import explained, unknown_key
from framework.cli.hydra_session import hydra_session
from framework.errors import ConfigError, say


class Origin(NamedTuple):
    """One place that sets a key.

    Attributes:
        key: The dotted key.
        place: The file or the typed word.
        value: The value there.
        dropped: Why it does not count; empty if it may count.
    """

    key: str
    place: str
    value: Any
    dropped: str = ""


def check_key(command: str, key: str) -> None:
    """Check the option's value. ConfigError C124 if it is no key."""
    if not key or key.startswith("-") or "=" in key:
        fix = f"paceline {command} ... --explain optim.lr"
        raise ConfigError(124, f"--explain {key}".strip(), "needs a key", fix)


def print_origins(command: str, arguments: Sequence[str], key: str, config_dir: str | None) -> int:
    """Print the places that set ``key``, or each key below it.

    ConfigError C102 for an unknown key.
    """
    words = list(arguments)
    with explained(command, words, config_dir), hydra_session(command, config_dir) as hydra:
        config = compose(command, words)
        origins = list(_origins(hydra.config_loader, command, words, key))
    node: Any = OmegaConf.to_container(config)
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            raise unknown_key(command, words, key, config_dir)
        node = node[part]
    for leaf, value in precedence.leaves(node, key):
        _print_leaf(config, leaf, value, [origin for origin in origins if origin.key == leaf])
    return 0


def _print_leaf(config: DictConfig, key: str, value: Any, origins: Sequence[Origin]) -> None:
    resolved = ""
    if isinstance(value, str) and "${" in value:
        try:
            resolved = f"  (that is {OmegaConf.select(config, key)})"
        except OmegaConfBaseException as error:
            resolved = f"  (cannot be resolved: {str(error).splitlines()[0]})"
    say(f"{key} = {_shown(value)}{resolved}")
    counting = next((origin for origin in reversed(origins) if not origin.dropped), None)
    width = max((len(origin.place) for origin in origins), default=0)
    for origin in origins:
        end = f"  {origin.dropped}" if origin.dropped else ""
        if origin is counting:
            end = "  <- this one counts"
        say(f"  {origin.place:{width}}  {_shown(origin.value)}{end}")


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def _origins(loader: Any, command: str, words: Sequence[str], key: str) -> Iterator[Origin]:
    """Yield the places that set ``key`` or a key below it, from the weakest to the strongest."""
    typed = loader.typed(words)
    last = precedence.last()
    files = dict(last.files)  # with the reasons of the composition, since they are read again here
    for default in loader.compute_defaults_list(command, typed, RunMode.RUN).defaults:
        name = str(default.config_path)
        if name in files and not name.startswith("hydra"):
            yield from _of_file(files[name], default.package or "", key)
    if last.without_validation and _is_within("data.val", key):
        yield Origin("data.val", "data.train is typed without data.val", None)
    for override in OverridesParser.create().parse_overrides(typed):
        place = override.key_or_group
        if loader.is_group(place) or place.startswith("hydra."):
            continue
        given = None if override.is_sweep_override() else override.value()
        for leaf, value in precedence.leaves(given, place):
            if _is_within(leaf, key):
                yield Origin(leaf, str(override.input_line), value)


def _of_file(file: precedence.File, package: str, key: str) -> Iterator[Origin]:
    content = {
        part: value for part, value in file.content.items() if part not in ("defaults", "hydra")
    }
    for leaf, value in precedence.leaves(content, package.removeprefix("_global_")):
        if _is_within(leaf, key):
            yield Origin(leaf, file.path, value, file.reasons.get(leaf, ""))


def _is_within(leaf: str, key: str) -> bool:
    return leaf == key or leaf.startswith(f"{key}.")
