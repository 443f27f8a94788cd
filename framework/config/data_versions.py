"""A resumed run reads the versions of its stores that it began with, whatever has been edited."""

import os
from collections.abc import Mapping
from contextlib import closing
from itertools import islice, product
from typing import Any

from framework.config.resume import Learned, is_of, validation_set, with_digest_of
from framework.config.targets import Config, val_sets
from framework.store.concatenated import mixed_digest
from framework.store.layered import LayeredStore
from framework.store.open_store import open_store
from framework.store.versions import num_versions, split_version

MOST_TRIED = 10_000  # combinations of versions of several stores
DIGEST = "data.digest."


def with_saved_versions(config: Config, state: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """Return a configuration that reads what a saved run read, and a note if that is older.

    Nothing changes for a path with a version, and if ``resume.allow`` names the data. Data that no
    version is stays, so that it is refused.

    Args:
        config: Plain values.
        state: The saved state.
    """
    if any(DIGEST.startswith(f"{name}.") for name in config["resume"]["allow"]):
        return config, []
    data = dict(config["data"])
    older: list[str] = []

    def older_of(given: Any, saved: Learned | None) -> Any:
        paths = _saved_paths(given, saved)
        if paths != given:
            older.extend([paths] if isinstance(paths, str) else paths.values())
        return paths

    data["train"] = older_of(data["train"], state["learned"])
    validation: Learned | None = state.get("validation")
    sets = {
        name: older_of(given, validation_set(validation, name))
        for name, given in val_sets(data).items()
    }
    if sets:
        data["val"] = sets.get("", sets)
    if not older:
        return config, []
    read = ", ".join(dict.fromkeys(path for path in older if split_version(path).number))
    note = f"the data has newer versions, and this run continues on its own: {read}"
    return {**config, "data": data}, [note]


def recorded_data(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``with_saved_versions`` asks of a state, from the manifests in ``run.json``."""
    read: dict[str, Learned] = {
        split: with_digest_of(manifest.get("digest") or None)
        for split, manifest in facts.get("data", {}).items()
    }
    validation = dict(read.get("val", {}))
    for split, own in read.items():
        _, dot, name = split.partition("val.")
        if dot:
            validation |= {f"{name}.{key}": value for key, value in own.items()}
    return {"learned": read.get("train", {}), "validation": validation or None}


def _saved_paths(given: Any, saved: Learned | None) -> Any:
    """Return ``data.train`` or ``data.val`` with the versions whose digest was saved.

    A block with ``_target_`` is an object of the user's, whose arguments stay.
    """
    if isinstance(given, dict) and "_target_" in given:
        return given
    paths = list(given.values()) if isinstance(given, dict) else [given]
    if not any(map(_has_layers, paths)):
        return given
    for choice in islice(product(*map(_versions, paths)), MOST_TRIED):
        names = [name for name, _ in choice]
        digests = [digest for _, digest in choice]
        if isinstance(given, dict) and is_of(saved, mixed_digest(digests)):
            return dict(zip(given, names, strict=True))
        if isinstance(given, str) and is_of(saved, digests[0]):
            return names[0]
    return given


def _has_layers(path: Any) -> bool:
    """Return whether ``path`` is a store without a typed version, and has more than one."""
    return isinstance(path, str) and os.path.exists(path) and num_versions(path) > 1


def _versions(path: str) -> list[tuple[str, str]]:
    """Return what names each version of a store, and its digest: the newest, as given, first."""
    with closing(open_store(path)) as store:
        newest = (path, store.manifest.digest)
        if not isinstance(store, LayeredStore) or split_version(path).number is not None:
            return [newest]
        named = [(f"{path}@{edit.number}", edit.manifest.digest) for edit in store.history]
    return [newest, *reversed(named[:-1])]
