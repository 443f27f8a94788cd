"""The keys of ``pack:``, and what they make of an input: a Preparation and a Packing."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import yaml

from framework.config.paths import CONF, SUFFIXES
from framework.config.rule import Rule, check_known, check_values
from framework.contracts.records import RecordInput
from framework.errors import ConfigError
from framework.pack.images import Preparation
from framework.pack.packing import MakeWriter, Packing
from framework.pack.split import SplitRule
from framework.store.hdf5_store import HDF5Writer

PREPARATION_RULES = {
    "encode": Rule(str),
    "resize": Rule(int | None),
    "max_side": Rule(int | None),
    "size": Rule(list[int] | None, means="[height, width]"),
    "quality": Rule(int | None),
    "color": Rule(str | None),
    "bit_depth": Rule(int | None),
    "rate": Rule(int | None),
    "frame_rate": Rule(float | None),
    "layout": Rule(str),
    "max_pixels": Rule(int),
}
PACKING_RULES = {
    "on_error": Rule(str),
    "one_file": Rule(bool),
    "part": Rule(int | None),
    "parts": Rule(int),
    "split": Rule(dict | None, means="a share for each split, {train: 0.9, val: 0.1}"),
    "split_by": Rule(str | None),
}
# The types alone: Preparation and Packing check the values, also for callers from Python.
RULES = PREPARATION_RULES | PACKING_RULES


def default_options() -> dict[str, Any]:
    """Return the keys of ``pack:`` as ``conf/pack.yaml`` has them."""
    return yaml.safe_load((CONF / "pack.yaml").read_text(encoding="utf-8"))["pack"]


def preparation_of(options: Mapping[str, Any]) -> Preparation:
    """Return what images become, from all keys of ``pack:``.

    Raises:
        ConfigError: C101 for a value that a key cannot have, C102 for an unknown key.
    """
    check_known(options, tuple(RULES), "pack")
    check_values(options, RULES, "pack.")
    return Preparation(**{key: options[key] for key in PREPARATION_RULES})


def packing_of(
    source: RecordInput, options: Mapping[str, Any], make_writer: MakeWriter, path: str
) -> Packing:
    """Return a packing with these keys of ``pack:``, all of which must be there.

    Raises:
        ConfigError: C247 for a rule of splits without splits.
    """
    prepare = preparation_of(options)
    run = {key: options[key] for key in PACKING_RULES}
    shares = run.pop("split")
    by = run.pop("split_by")
    split = None
    if shares is not None:
        split = SplitRule({str(name): share for name, share in shares.items()}, by)
    elif by is not None:
        fix = "add 'pack.split={train: 0.9, val: 0.1}'"
        raise ConfigError(247, f"pack.split_by = {by}", "there is no split", fix)
    return Packing(source, make_writer, path, prepare, **run, split=split)


def for_output(packing: Packing, source: Mapping[str, Any], output: Mapping[str, Any]) -> Packing:
    """Choose the format of the jobs' files: the writer's own, or HDF5 if it writes no stores.

    Args:
        packing: What is packed.
        source: The keys of the input. Finished jobs are kept only if all of them are the same.
        output: The keys of the writer.
    """
    keys = {key: value for key, value in output.items() if key != "path"}
    packing = replace(packing, configured={"input": source, "output": keys})
    suffix = SUFFIXES.get(output["_target_"])
    if suffix is None:
        return replace(packing, suffix=".h5", make_part=HDF5Writer)
    return replace(packing, suffix=suffix, make_part=None)
