"""The versions of a store: which layer files lie beside it, and which of them a path means.

``train.h5`` means the newest version and ``train.h5@2`` the second one. Version 1 is the store as
it was packed. A later version ``k`` is made by the file ``train.h5.layerK``.
"""

import os
import re
from collections.abc import Callable
from typing import NamedTuple

from framework.contracts.records import RecordStore
from framework.errors import DataError
from framework.store.identity import unreadable

NUMBERED = re.compile(r"(.+)@(\d{1,6})", re.DOTALL)
LAYER = re.compile(r"(.+)\.layer\d+", re.DOTALL)


class VersionPath(NamedTuple):
    """The file or folder of a store, and the number of a version; None: the newest."""

    path: str
    number: int | None = None


def split_version(path: str) -> VersionPath:
    """Return what a path such as ``train.h5@2`` means. An existing file keeps its name."""
    named = version_words(path)
    if named is None or os.path.lexists(path) or not os.path.exists(named.path):
        return VersionPath(path)
    return named


def version_words(path: str) -> VersionPath | None:
    """Return what a path such as ``train.h5@2`` says, even if there is no such store.

    None for a path without a version.
    """
    match = NUMBERED.fullmatch(path)
    return None if match is None else VersionPath(match[1], int(match[2]))


def own_path(path: str) -> str:
    """Return the path beside which the layers of a store lie. Links to a store share them."""
    return os.path.realpath(path) if os.path.islink(path) else os.path.normpath(path)


def layer_path(path: str, number: int) -> str:
    """Return the layer file of a version."""
    return f"{own_path(path)}.layer{number}"


def num_versions(path: str) -> int:
    """Return the number of versions of the store at ``path``, at least 1.

    Raises:
        DataError: D101 if its folder cannot be listed, D250 if a layer is missing.
    """
    folder, name = os.path.split(own_path(path))
    pattern = re.compile(re.escape(name) + r"\.layer([1-9]\d{0,5})", re.DOTALL)
    try:
        names = os.listdir(folder or ".")
    except (FileNotFoundError, NotADirectoryError):
        return 1
    except OSError as error:
        raise unreadable(folder, error) from error
    numbers = sorted(int(match[1]) for match in map(pattern.fullmatch, names) if match)
    _check_gapless(path, numbers)
    return 1 + len(numbers)


def version_of(path: str) -> VersionPath:
    """Return the store that a path means, and the number of its version.

    Raises:
        DataError: D250 if there is no such version, or if ``path`` is a layer.
    """
    given = split_version(path)
    _refuse_layer(given.path)
    if given.number == 1:
        return given
    count = num_versions(given.path)
    if given.number is None:
        return VersionPath(given.path, count)
    if not 1 <= given.number <= count:
        what = f"there is no such version; there are {count}"
        raise DataError(250, path, what, f"give a number from 1 to {count}")
    return given


def layer_paths(path: str) -> list[str]:
    """Return the layer files that the version at ``path`` consists of, besides the store."""
    given = version_of(path)
    return [layer_path(given.path, number) for number in range(2, (given.number or 1) + 1)]


def files_of(path: str) -> list[str]:
    """Return the files of a version: the store, or those of its folder, and layers."""
    given = split_version(path)
    files = [given.path]
    if os.path.isdir(given.path):
        names = sorted(os.listdir(given.path))
        files = [os.path.join(given.path, name) for name in names]
    return [*files, *layer_paths(path)]


def open_version(path: str, open_base: Callable[[str], RecordStore]) -> RecordStore:
    """Return the store at ``path`` in the version that the path means.

    ``open_base`` opens the store as it was packed, which is returned if version 1 is meant.
    """
    given = version_of(path)
    base = open_base(given.path)
    if given.number == 1:
        return base
    from framework.store.layered import LayeredStore  # noqa: PLC0415  # loads h5py

    return LayeredStore(given.path, base, layer_paths(path))


def _check_gapless(path: str, numbers: list[int]) -> None:
    """Check that the layers of the store at ``path`` are 2, 3, ... DataError D250."""
    for wanted, number in enumerate(numbers, 2):
        if number != wanted:
            what = f"is missing, and {os.path.basename(layer_path(path, number))} needs it"
            if number == 1:
                what = "is missing, since layers are numbered from 2"
            fix = "copy all layers with the store, or remove the later ones"
            raise DataError(250, layer_path(path, wanted), what, fix)


def _refuse_layer(path: str) -> None:
    layer = LAYER.fullmatch(path)
    if layer is not None and os.path.isfile(path) and os.path.exists(layer[1]):
        fix = f"give {layer[1]}, or {layer[1]}@NUMBER for an older version"
        raise DataError(250, path, f"is a layer of {layer[1]}, and no whole store", fix)
