"""Folders of the configurations: beside the package in a checkout, inside it in a wheel."""

import os
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent
CONF = ROOT / "conf"
# Suffixes of the files that are stores, by their writers.
SUFFIXES = {
    "framework.store.hdf5_store.HDF5Writer": ".h5",
    "framework.store.lmdb_store.LMDBWriter": ".lmdb",
}


def is_below(path: str) -> bool:
    """Return whether a path lies below the present folder, with links followed.

    ``outputs`` may be a link of the user's to a larger disk.
    """
    place = os.path.abspath(path)
    is_output = place.startswith(os.path.join(os.getcwd(), "outputs", ""))
    inside = os.path.realpath(place).startswith(os.path.join(os.path.realpath("."), ""))
    return is_output or inside
