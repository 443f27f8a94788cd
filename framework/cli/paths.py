"""Where the configuration lives: beside the package in a checkout, inside it in an installed wheel; and how stores are named."""

from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
ROOT = _PACKAGE if (_PACKAGE / "conf").is_dir() else _PACKAGE.parent
CONF = ROOT / "conf"
SUFFIXES = {
    "framework.store.hdf5_store.HDF5Writer": ".h5",
    "framework.store.lmdb_store.LMDBWriter": ".lmdb",
}  # of files that are stores, by their writers
