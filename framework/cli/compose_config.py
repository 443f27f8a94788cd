"""Compose training configurations one after the other in one process."""

from collections.abc import Sequence
from typing import Any

from hydra import compose
from omegaconf import DictConfig

from framework.cli.allowed import Grant, allowed_targets
from framework.cli.explain import explained
from framework.cli.hydra_app import resolved
from framework.cli.hydra_session import hydra_session
from framework.cli.precedence import check_data_named, set_keys
from framework.cli.unused_keys import check_uses
from framework.config import schema
from framework.config.targets import check_targets, with_folds, with_functions
from framework.errors import ConfigError

Config = dict[str, Any]


def composed(
    overrides: Sequence[str],
    grant: Grant,
    config_dir: str | None = None,
    own_keys: Sequence[str] = (),
) -> tuple[Config, tuple[str, ...]]:
    """Compose and check what ``paceline train`` would train with these overrides.

    Args:
        overrides: The words of the command line.
        grant: The packages that the user allows.
        config_dir: The user's folder of groups and recipes.
        own_keys: The keys of the command, which a misspelled word may mean.

    Returns:
        The configuration as plain values, and the prefixes of the user's packages.

    Raises:
        ConfigError: For a configuration that could not be trained.
    """
    with explained("train", overrides, config_dir, own_keys), hydra_session("train", config_dir):
        return checked(compose("train", list(overrides)), grant)


def checked(composition: DictConfig, grant: Grant) -> tuple[Config, tuple[str, ...]]:
    """Check a composed configuration of ``train``. Return what ``composed`` returns."""
    config = resolved(composition)
    allowed = allowed_targets(config, grant)
    schema.check(config)
    config = with_folds(with_functions(config))
    check_targets(config, allowed)
    check_data_named(composition)
    check_uses(composition)
    if config["data"]["source"]["_target_"] == schema.LOADER:
        config = _of_loader(config)
    return config, allowed


def _of_loader(config: Config) -> Config:
    """Return the configuration of ready batches, whose size is theirs unless ``batch_size`` is set.

    ConfigError C174 for a key that is set and would be ignored.
    """
    keys = set_keys()
    for key in ("shuffle", "verify", "workers.num", "workers.timeout_s"):
        if key in keys:
            what = "a DataLoader's batches come as they are"
            fix = "set it in the DataLoader, or choose data=dataset"
            raise ConfigError(174, f"{key}, data = dataloader", what, fix)
    return config if "batch_size" in keys else {**config, "batch_size": None}
