"""Causes in how and where records are stored."""

from pathlib import Path

from planted.contract import Planted
from planted.pictures import write_folder, write_raw
from planted.users import SMALL

RESIZE = ("transform=resize", "transform.size=[64,64]")


def _huge(folder: Path) -> list[str]:
    huge = write_folder(folder / "huge", 64, 3000, 4000, num_different=16)
    return [*SMALL, "batch_size=16", "data=folder", f"data.train={huge}", *RESIZE]


def _chunked(folder: Path) -> list[str]:
    chunked = write_raw(folder / "chunked.h5", 2048, 64, 256, "gzip")
    return [*SMALL, "batch_size=64", "data=hdf5", f"data.train={chunked}"]


PLANTED = (
    Planted("huge", "repack_smaller", "huge JPEGs are read whole", _huge),
    Planted("chunked", "repack_contiguous", "compressed chunks are read at random", _chunked),
)
