"""Causes in loading: workers, their number and kind, and Python in the transform."""

from pathlib import Path

from planted.contract import Planted, Remedy
from planted.pictures import write_folder, write_raw
from planted.users import SMALL


def _photos(folder: Path) -> str:
    return write_folder(folder / "photos", 640, 320, 400)


def _pillow(folder: Path) -> list[str]:
    return [
        *SMALL,
        "batch_size=64",
        "data=folder",
        f"data.train={_photos(folder)}",
        "data.source._target_=planted.users.pillow_source",
        "+data.source.size=64",
        "workers.num=0",
        "loader=plain",
    ]


def _transformed(folder: Path, function: str) -> list[str]:
    return [
        *SMALL,
        "batch_size=64",
        "data=folder",
        f"data.train={_photos(folder)}",
        "transform=function",
        "transform@transform.geometry=resize",
        "transform.geometry.size=[32,32]",
        f"transform.function._target_=planted.users.{function}",
    ]


def _locked(folder: Path) -> list[str]:
    # Small images, so that even a trial of a second has dozens of steps.
    return [
        *SMALL,
        "batch_size=16",
        "data=folder",
        f"data.train={write_folder(folder / 'small_photos', 640, 160, 200)}",
        "data.source._target_=planted.users.locked_source",
        "+data.source.size=64",
        "workers.num=2",
        "workers.kind=thread",
    ]


def _slowed(folder: Path) -> list[str]:
    # One thread prepares a batch in about the time of a step, so that hardly a step waits for it.
    words = [word for word in SMALL if not word.startswith("model.")]
    return [
        *words,
        "model=null",
        "+model._target_=planted.users.Deep",
        "+model.depth=180",
        "batch_size=16",
        "data=folder",
        f"data.train={write_folder(folder / 'small_photos', 640, 160, 200)}",
        "transform=function",
        "transform@transform.geometry=resize",
        "transform.geometry.size=[32,32]",
        "transform.function._target_=planted.users.vignette",
        "workers.num=1",
        "workers.kind=thread",
    ]


def _too_many(folder: Path) -> list[str]:
    # Gathering a batch takes less time than handing it over from another process.
    return [
        *SMALL,
        "batch_size=64",
        "data=hdf5",
        f"data.train={write_raw(folder / 'small.h5', 24576, 16)}",
        "workers.kind=process",
        "workers.num=16",
    ]


PLANTED = (
    Planted("pillow", "raise_workers", "Pillow decodes with no workers", _pillow),
    Planted(
        "transform",
        "python_in_transform",
        "a transform that loops in Python",
        lambda folder: _transformed(folder, "vignette"),
        Remedy(lambda folder: _transformed(folder, "fast_vignette")),
    ),
    Planted("locked", "processes", "reading that holds Python's lock, in threads", _locked),
    Planted(
        "slowed",
        "slowed_step",
        "a function in a Python thread beside a model of many small operations",
        _slowed,
        environment={"OMP_NUM_THREADS": "1"},
    ),
    Planted("workers", "no_workers", "16 workers for records that one thread prepares", _too_many),
)
