"""What a command line sweeps, for commands that go through the combinations themselves."""

from collections.abc import Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from framework.cli.explain import explain
from framework.cli.guard import check_jobs
from framework.cli.hydra_app import register
from framework.cli.paths import CONF
from framework.errors import ConfigError, PacelineError

Axes = dict[str, list[str]]


def axes_of(words: Sequence[str]) -> tuple[Axes, list[str]]:
    """What is swept, key -> values, by the command line and by the recipe's own ``hydra.sweeper.params``; and the words that are not.

    ConfigError C100 for what Hydra cannot read, C186 for a sweep without an end or a key that bench would ignore.
    """
    register()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
            parser = OverridesParser.create(GlobalHydra.instance().config_loader())
            typed = {
                found.get_key_element(): found for found in parser.parse_overrides(list(words))
            }
            fixed = [
                str(found.input_line) for found in typed.values() if not found.is_sweep_override()
            ]
            found = {
                key: value for key, value in _of_recipe(parser, fixed).items() if key not in typed
            }
            check_jobs([*found.values(), *typed.values()])
            return {
                key: _values(one)
                for key, one in {**found, **typed}.items()
                if one.is_sweep_override()
            }, [
                *(str(one.input_line) for one in found.values() if not one.is_sweep_override()),
                *fixed,
            ]
    except PacelineError:
        raise
    except Exception as error:  # a file can make Hydra raise anything
        raise explain("train", list(words), error) from error


def _of_recipe(parser: OverridesParser, fixed: list[str]) -> dict[str, Override]:
    """Hydra's ``sweeper.params`` of the configuration, which ``paceline train -m`` would sweep."""
    try:
        config = compose("train", fixed, return_hydra_config=True)
        params = OmegaConf.to_container(config.hydra.sweeper).get("params") or {}  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
    except Exception:  # noqa: BLE001
        return {}  # composing each cell will say what is wrong
    return {
        found.get_key_element(): found
        for found in parser.parse_overrides([f"{key}={value}" for key, value in params.items()])
    }


def _values(found: Override) -> list[str]:
    if found.is_hydra_override() or not found.is_discrete_sweep():
        what = (
            "is of Hydra's, not of training"
            if found.is_hydra_override()
            else "has no list of values"
        )
        raise ConfigError(186, str(found.input_line), what, "sweep key=a,b or key=range(0,4)")
    return list(found.sweep_string_iterator())
