"""Causes in single records."""

import os
from pathlib import Path

from planted.contract import Planted, Remedy
from planted.pictures import CLASSES, write_folder
from planted.users import SMALL

NUM, NUM_HUGE = 1024, 12
RESIZE = ("transform=resize", "transform.size=[64,64]")


def _words(path: str) -> list[str]:
    return [*SMALL, "batch_size=32", "data=folder", f"data.train={path}", *RESIZE]


def _few_huge(folder: Path) -> list[str]:
    """Make a folder of small images, of which a few are huge."""
    mixed = folder / "few_huge"
    huge = Path(write_folder(folder / "few_huge_originals", 2, 6000, 8000))
    if not mixed.exists():
        write_folder(mixed, NUM, 80, 80)
        for number in range(0, NUM, NUM // NUM_HUGE):
            kind = CLASSES[number % 2]
            place = mixed / kind / f"{number:05d}.jpg"
            place.unlink()
            os.link(next((huge / kind).iterdir()), place)
    return _words(str(mixed))


def _none_huge(folder: Path) -> list[str]:
    return _words(write_folder(folder / "none_huge", NUM, 80, 80))


PLANTED = (
    Planted(
        "few_huge",
        "slow_records",
        "a few huge JPEGs among small ones",
        _few_huge,
        remedy=Remedy(_none_huge),
    ),
)
