"""Refuse a typed key that nothing in the run would read."""

from collections.abc import Callable
from typing import Any, NamedTuple

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from framework.cli.precedence import typed_keys
from framework.errors import ConfigError

Config = dict[str, Any]
READ = (
    "train",
    "val",
    "val_transform",
    "source",
    "writer",
    "classes",
)  # keys of data that are read by their names
MADE = "framework.data.dataset."  # the source of a user's Dataset


class _Use(NamedTuple):
    """When a key counts."""

    key: str
    counts: Callable[[Config], bool]
    why: str  # it does not
    fix: str


USES = (
    _Use(
        "optim.reference_batch_size",
        lambda config: config["optim"].get("scaling") not in (None, "none"),
        "is not used without optim.scaling",
        "add optim.scaling=linear, or leave it out",
    ),
    _Use(
        "max_skips",
        lambda config: config["on_nan"] == "skip" or config["precision"].get("dtype") == "fp16",
        "no step is skipped",
        "add on_nan=skip, or leave it out",
    ),
    _Use(
        "resume.allow",
        lambda config: config["resume"]["run"] is not None or config["resume"]["auto"],
        "nothing is resumed",
        "add resume=RUN_DIR, or leave it out",
    ),
    _Use(
        "verify",
        lambda config: not str(config["data"]["source"]["_target_"]).startswith(MADE),
        "a Dataset has no CRC32 to compare",
        "leave it out",
    ),
    _Use(
        "batch_size",
        lambda config: config["rank_batch_size"] is None,
        "is replaced by rank_batch_size",
        "give one of the two",
    ),
    *(
        _Use(
            key,
            lambda config: config["data"].get("val") is not None,
            "there is no validation",
            "add data.val=PATH, or leave it out",
        )
        for key in ("val_batch_size", "data.val_transform")
    ),
    _Use(
        "augment.padding_mode",
        lambda config: config["augment"].get("padding") != 0,
        "no image is padded",
        "leave out augment.padding=0, or this",
    ),
    _Use(
        "augment.alternate",
        lambda config: config["augment"].get("flip") != 0,
        "no image is mirrored",
        "leave out augment.flip=0, or this",
    ),
    *(
        _Use(
            key,
            lambda config: config["shuffle"] and config["order"].get("block_records") is not None,
            "no blocks are shuffled",
            "add order=block without shuffle=false, or leave it out",
        )
        for key in ("order.block_records", "order.window_blocks")
    ),
    *(
        _Use(
            key,
            lambda config: config["workers"]["num"] != 0,
            "there are no workers",
            "leave out workers.num=0, or this",
        )
        for key in ("workers.kind", "workers.start_method")
    ),
    _Use(
        "dataset",
        lambda config: "${dataset}" in str(config),
        "is not used, because data.train and data.val are named one by one",
        "leave it or them out",
    ),
    _Use(
        "source",
        lambda config: "${source}" in str(config),
        "is used only by recipes that pack it",
        "add recipes=NAME, or pack it by 'paceline pack'",
    ),
)


def check_uses(composition: DictConfig) -> None:
    """Check that every typed key counts. ConfigError C210. A sweep may type one for other jobs."""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        return
    config: Any = OmegaConf.to_container(composition)
    keys = typed_keys()
    for use in USES:
        value = OmegaConf.select(composition, use.key)
        if use.key in keys and value is not None and not use.counts(config):
            raise ConfigError(210, f"{use.key} = {value}"[:100], use.why, use.fix)
    for key in sorted(keys):
        group, _, name = key.partition(".")
        name = name.partition(".")[0]
        if group == "data" and name and name not in READ and f"${{data.{name}" not in str(config):
            raise ConfigError(210, key, "nothing reads it", "correct the name, or leave it out")
