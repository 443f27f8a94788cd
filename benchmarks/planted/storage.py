"""Causes in how and where records are stored."""

from pathlib import Path

from planted.contract import Planted
from planted.pictures import write_folder, write_raw
from planted.users import SMALL

RESIZE = ("transform=resize", "transform.size=[64,64]")
OF_64 = "batch_size=64"


def _files(folder: Path, name: str, ending: str, height: int, width: int, count: int) -> list[str]:
    """Return the words of a run on a folder of files of one format."""
    path = write_folder(folder / name, count, height, width, ending)
    return [*SMALL, OF_64, "data=folder", f"data.train={path}"]


def _huge(folder: Path) -> list[str]:
    huge = write_folder(folder / "huge", 256, 3000, 4000, num_different=16)
    return [*SMALL, "batch_size=16", "data=folder", f"data.train={huge}", *RESIZE]


def _large(folder: Path) -> list[str]:
    return [*_files(folder, "large", ".jpg", 600, 800, 640), *RESIZE]


def _codec(folder: Path, ending: str) -> list[str]:
    return [*_files(folder, f"files{ending}", ending, 120, 160, 1280), *RESIZE]


def _raw_large(folder: Path) -> list[str]:
    raw = write_raw(folder / "large.h5", 512, 512, num_different=16)
    return [*SMALL, OF_64, "data=hdf5", f"data.train={raw}", *RESIZE]


def _tiny_files(folder: Path) -> list[str]:
    words = _files(folder, "tiny", ".jpg", 16, 16, 4096)
    return ["batch_size=256" if word == OF_64 else word for word in words]


PLANTED = (
    Planted("huge", "huge_records", "JPEGs of 12 megapixels are read whole", _huge),
    Planted("large", "repack_smaller", "images ten times as wide as what the model sees", _large),
    Planted("raw", "raw_too_large", "stored pixels are many more than the model sees", _raw_large),
    Planted("jpeg", "decode_jpeg", "every epoch decodes JPEGs", lambda at: _codec(at, ".jpg")),
    Planted("png", "decode_png", "every epoch decodes PNGs", lambda at: _codec(at, ".png")),
    Planted("webp", "decode_webp", "every epoch decodes WebP", lambda at: _codec(at, ".webp")),
    Planted("tiny_files", "small_records", "thousands of files of a kilobyte", _tiny_files),
)
