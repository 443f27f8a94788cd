"""Training configurations composed one after the other in one process: what measuring commands compare."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from framework.cli.allowed import Grant, allowed_targets
from framework.cli.arguments import quoted
from framework.cli.explain import explain
from framework.cli.hydra_app import register, resolved
from framework.cli.paths import CONF
from framework.cli.precedence import check_data_named
from framework.config import schema as settings
from framework.config.targets import check_targets
from framework.errors import PacelineError

Config = dict[str, Any]


def composed(
    overrides: Sequence[str], grant: Grant, config_dir: str | None = None
) -> tuple[Config, tuple[str, ...]]:
    """What ``paceline train`` with these ``overrides`` would train, checked as it would be: plain values, and the user's packages.

    ``config_dir``: the user's own groups and recipes. Raises ConfigError.
    """
    register()
    words = list(overrides)
    if config_dir is not None:
        words.append(f"hydra.searchpath=[{quoted('file://' + str(Path(config_dir).absolute()))}]")
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(CONF), version_base="1.3", job_name="train"):
            composition = compose("train", words)
            config = resolved(composition)
    except PacelineError:
        raise
    except Exception as error:  # a file can make Hydra raise anything
        raise explain("train", words, error) from error
    allowed = allowed_targets(config, grant)
    settings.check(config)
    check_targets(config, allowed)
    check_data_named(composition)
    return config, allowed
