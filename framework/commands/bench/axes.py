"""The swept keys of a command line, for commands that try the combinations themselves."""

from collections.abc import Sequence
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from framework.cli.explain import explained
from framework.cli.hydra_session import hydra_session
from framework.errors import ConfigError

Axes = dict[str, list[str]]


def axes_of(words: Sequence[str], config_dir: str | None = None) -> tuple[Axes, list[str]]:
    """Split a command line into swept keys with their values, and the other words.

    A recipe's own ``hydra.sweeper.params`` count too, unless the same key is typed. ``config_dir``
    is the user's folder of groups and recipes.

    Raises:
        ConfigError: C100 for what Hydra cannot read, C186 for a
            sweep without a list of values, or over a key of Hydra's.
    """
    with explained("train", words, config_dir), hydra_session("train", config_dir) as hydra:
        parser = OverridesParser.create(hydra.config_loader)
        typed = _by_key(parser.parse_overrides(list(words)))
        fixed = _lines(typed)
        params = _by_key(parser.parse_overrides(_params_of(fixed)))
        of_file = {key: params[key] for key in params if key not in typed}
        swept = {**of_file, **typed}
        axes = {key: _values(swept[key]) for key in swept if swept[key].is_sweep_override()}
        return axes, [*_lines(of_file), *fixed]


def _by_key(overrides: Sequence[Override]) -> dict[str, Override]:
    return {override.get_key_element(): override for override in overrides}


def _lines(overrides: dict[str, Override]) -> list[str]:
    """Return the words that sweep nothing."""
    fixed = [override for override in overrides.values() if not override.is_sweep_override()]
    return [str(override.input_line) for override in fixed]


def _params_of(fixed: list[str]) -> list[str]:
    """Return ``hydra.sweeper.params`` of the configuration as words."""
    try:
        config = compose("train", fixed, return_hydra_config=True)
        sweeper: Any = OmegaConf.to_container(config.hydra.sweeper)
    except Exception:  # noqa: BLE001  # composing each combination says what is wrong
        return []
    return [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]


def _values(override: Override) -> list[str]:
    fix = "sweep key=a,b or key=range(0,4)"
    if override.is_hydra_override():
        what = "is a key of Hydra's, not of training"
        raise ConfigError(186, str(override.input_line), what, fix)
    if not override.is_discrete_sweep():
        raise ConfigError(186, str(override.input_line), "has no list of values", fix)
    return list(override.sweep_string_iterator())
