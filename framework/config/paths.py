"""Folders of the configurations: beside the package in a checkout, inside it in a wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent
CONF = ROOT / "conf"
# Suffixes of the files that are stores, by their writers.
SUFFIXES = {
    "framework.store.hdf5_store.HDF5Writer": ".h5",
    "framework.store.lmdb_store.LMDBWriter": ".lmdb",
}
