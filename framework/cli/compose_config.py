"""Compose and check training configurations, one after the other in one process."""

from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework.cli.allowed import Grant, allowed_targets
from framework.cli.explain import explained
from framework.cli.hydra_session import hydra_session, resolved
from framework.cli.precedence import DATA_PATHS, last
from framework.config import schema
from framework.config.targets import check_targets, completed
from framework.errors import ConfigError

Config = dict[str, Any]
MADE = "framework.data.dataset."  # the source of a user's Dataset
# keys of data that are read by their names
READ = ("train", "val", "val_transform", "source", "writer", "classes")


def composed(
    overrides: Sequence[str],
    grant: Grant,
    config_dir: str | None = None,
    own_keys: Sequence[str] = (),
) -> tuple[Config, tuple[str, ...]]:
    """Compose and check what ``paceline train`` would train with these overrides.

    ``config_dir`` is the user's folder, and a misspelled word may mean one of ``own_keys``.

    Returns:
        The configuration as plain values, and the prefixes of the user's packages.
    """
    with explained("train", overrides, config_dir, own_keys), hydra_session("train", config_dir):
        return checked(compose("train", list(overrides)), grant)


def checked(composition: DictConfig, grant: Grant) -> tuple[Config, tuple[str, ...]]:
    """Check a composed configuration of ``train``. Return what ``composed`` returns.

    ConfigError C174 for a typed key that ready batches would ignore.
    """
    config = resolved(composition)
    allowed = allowed_targets(config, grant)
    schema.check(config)
    config = completed(config)
    check_targets(config, allowed)
    plain: Any = OmegaConf.to_container(composition)
    _check_data_named(plain)
    _check_uses(composition, plain)
    if config["data"]["source"]["_target_"] == schema.LOADER:
        keys = last().set_keys
        for key in ("shuffle", "verify", "workers.num", "workers.timeout_s"):
            if key in keys:
                what = "a DataLoader's batches come as they are"
                fix = "set it in the DataLoader, or choose data=dataset"
                raise ConfigError(174, f"{key}, data = dataloader", what, fix)
        if "batch_size" not in keys:
            config = {**config, "batch_size": None}
    return config, allowed


def _check_data_named(config: Config) -> None:
    """Check that data is named, and that named validation data is used. ConfigError C103, C205."""
    data, has_folds = config["data"], config["folds"] is not None
    if has_folds and any(f"{key}.".startswith("data.val.") for key in last().data_keys):
        what = "is not used, because a fold of data.train validates"
        raise ConfigError(205, f"data.val = {data['val']}", what, "leave it or folds out")
    if config["dataset"] is not None:
        return
    for split in DATA_PATHS:
        is_open = isinstance(data[split], str) and "${dataset}" in data[split]
        if is_open and not (split == "val" and has_folds):
            fix = f"add data.{split}=STORE, dataset=FOLDER with the packed stores, or recipes=NAME"
            raise ConfigError(103, f"data.{split}", "must be given, since no recipe says it", fix)


def _check_uses(composition: DictConfig, config: Config) -> None:
    """Check that every typed key counts. ConfigError C210. A sweep may type one for other jobs."""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        return
    keys = last().keys
    for key, why, fix in _unused(config):
        value = OmegaConf.select(composition, key)
        if key in keys and value is not None:
            raise ConfigError(210, f"{key} = {value}"[:100], why, fix)
    for key in sorted(keys):
        group, _, name = key.partition(".")
        name = name.partition(".")[0]
        if group == "data" and name and name not in READ and f"${{data.{name}" not in str(config):
            raise ConfigError(210, key, "nothing reads it", "correct the name, or leave it out")


def _unused(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield each key that would count for nothing here, why, and what to do."""
    augment, order = config["augment"], config["order"]
    if config["optim"].get("scaling") in (None, "none"):
        fix = "add optim.scaling=linear, or leave it out"
        yield "optim.reference_batch_size", "is not used without optim.scaling", fix
    if config["on_nan"] != "skip" and config["precision"].get("dtype") != "fp16":
        yield "max_skips", "no step is skipped", "add on_nan=skip, or leave it out"
    if config["resume"]["run"] is None and not config["resume"]["auto"]:
        yield "resume.allow", "nothing is resumed", "add resume=RUN_DIR, or leave it out"
    if str(config["data"]["source"]["_target_"]).startswith(MADE):
        yield "verify", "a Dataset has no CRC32 to compare", "leave it out"
    if config["rank_batch_size"] is not None:
        yield "batch_size", "is replaced by rank_batch_size", "give one of the two"
    if config["data"].get("val") is None:
        for key in ("val_batch_size", "data.val_transform"):
            yield key, "there is no validation", "add data.val=PATH, or leave it out"
    if augment.get("padding") == 0:
        fix = "leave out augment.padding=0, or this"
        yield "augment.padding_mode", "no image is padded", fix
    if augment.get("flip") == 0:
        yield "augment.alternate", "no image is mirrored", "leave out augment.flip=0, or this"
    if not config["shuffle"] or order.get("block_records") is None:
        for key in ("order.block_records", "order.window_blocks"):
            fix = "add order=block without shuffle=false, or leave it out"
            yield key, "no blocks are shuffled", fix
    if config["workers"]["num"] == 0:
        for key in ("workers.kind", "workers.start_method"):
            yield key, "there are no workers", "leave out workers.num=0, or this"
    if "${dataset}" not in str(config):
        what = "is not used, because data.train and data.val are named one by one"
        yield "dataset", what, "leave it or them out"
    if "${source}" not in str(config):
        fix = "add recipes=NAME, or pack it by 'paceline pack'"
        yield "source", "is used only by recipes that pack it", fix
