"""A block that is typed with another ``_target_`` replaces the block below, as a choice does.

Hydra merges the two, which would give arguments of one class to another.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from framework.cli import precedence

TARGET = "_target_"


def drop_replaced(
    config: DictConfig, loader: ConfigLoader, command: str, words: Sequence[str]
) -> None:
    """Remove from a composed configuration what typed blocks of other targets replace.

    Keys of the command's own file, such as ``optim.scaling``, get their values there.

    Args:
        config: The composed configuration.
        loader: Hydra's loader, which has composed it.
        command: The name of the command and of its file.
        words: The overrides.
    """
    if not any(TARGET in word and "{" in word for word in words):
        return
    typed = [
        word
        for word in OverridesParser.create().parse_overrides(list(words))
        if not (word.is_delete() or word.is_sweep_override())
    ]
    kept = {
        leaf for word in typed for leaf, _ in precedence.leaves(word.value(), word.key_or_group)
    }
    layers = _layers(loader, command, words)
    own = dict(precedence.leaves(precedence.last().files[command].content, ""))
    for word in typed:
        for place, target in _blocks(word.value(), word.key_or_group):
            if _target_below(layers, place) in (None, target):
                continue
            for name, leaves in layers.items():
                below = [leaf for leaf in leaves if leaf.startswith(f"{place}.")]
                values = {leaf: leaves[leaf] for leaf in below if leaf not in kept}
                precedence.note_dropped(name, values, str(word.input_line))
                for leaf in values:
                    _reset(config, leaf, own)


def _target_below(layers: dict[str, dict[str, Any]], place: str) -> Any:
    """Return the target that the files give a block, or None."""
    key = f"{place}.{TARGET}"
    return next((own[key] for own in reversed(layers.values()) if key in own), None)


def _blocks(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and the target of each block in a typed value."""
    if isinstance(value, dict):
        if TARGET in value:
            yield place, value[TARGET]
        for name, item in value.items():
            yield from _blocks(item, f"{place}.{name}")


def _layers(loader: ConfigLoader, command: str, words: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the values that count of each file but the command's own, the weakest file first."""
    layers: dict[str, dict[str, Any]] = {}
    for default in loader.compute_defaults_list(command, list(words), RunMode.RUN).defaults:
        name = str(default.config_path)
        file = precedence.last().files.get(name)
        if file is not None and name != command:
            package = (default.package or "").removeprefix("_global_")
            content = {key: item for key, item in file.content.items() if key != "defaults"}
            leaves = dict(precedence.leaves(content, package))
            layers[name] = {key: leaves[key] for key in leaves if key not in file.reasons}
    return layers


def _reset(config: DictConfig, leaf: str, own: Mapping[str, Any]) -> None:
    """Give a key the value of the command's own file, or remove it, and blocks that get empty."""
    if leaf in own:
        OmegaConf.update(config, leaf, own[leaf])
        return
    above, _, last = leaf.rpartition(".")
    parent = OmegaConf.select(config, above)
    if isinstance(parent, DictConfig) and last in parent:
        with open_dict(parent):
            del parent[last]
        if not parent and "." in above:
            _reset(config, above, own)
