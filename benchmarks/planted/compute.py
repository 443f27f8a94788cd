"""Causes in computing."""

from pathlib import Path

from planted.contract import Planted, Remedy, needs_gpu
from planted.pictures import write_raw
from planted.users import SMALL


def _model(folder: Path) -> list[str]:
    return [
        "model=resnet18",
        "model.stem=small",
        "model.num_classes=2",
        "batch_size=8",
        "data=hdf5",
        f"data.train={write_raw(folder / 'raw.h5', 2048, 64)}",
        "data.val=null",
    ]


def _own(folder: Path, *words: str) -> list[str]:
    raw = write_raw(folder / "raw.h5", 2048, 64)
    return [*SMALL, "batch_size=16", "data=hdf5", f"data.train={raw}", *words]


def _objective(folder: Path, count: int) -> list[str]:
    own = ("+objective._target_=planted.users.ReadsLoss", f"+objective.count={count}")
    return _own(folder, "objective=null", *own)


def _looping(folder: Path, count: int) -> list[str]:
    own = ("model=null", "+model._target_=planted.users.LoopingModel", f"+model.count={count}")
    return [word for word in _own(folder) if not word.startswith("model.")] + list(own)


def _augment(folder: Path, rows: int) -> list[str]:
    own = ("+augment._target_=planted.users.OneByOne", f"+augment.rows={rows}")
    return _own(folder, "augment=null", *own)


def _copied(folder: Path) -> list[str]:
    # An epoch has many steps, because it begins without batches on their way.
    raw = write_raw(folder / "copied.h5", 4096, 256, num_different=16)
    # computing takes twice as long as copying, so that the host can deliver in time beside both
    words = [word for word in SMALL if not word.startswith("model.width")] + ["model.width=16"]
    return [*words, "batch_size=128", "data=hdf5", f"data.train={raw}", "loader=prefetch"]


def _kernels(folder: Path) -> list[str]:
    own = ("model=null", "+model._target_=planted.users.Deep", "+model.depth=200")
    return [word for word in _own(folder) if not word.startswith("model.")] + list(own)


def _tiny(folder: Path) -> list[str]:
    return [word for word in _own(folder, "batch_size=1") if word != "batch_size=16"]


PLANTED = (
    Planted("model", "data_is_fine", "an over-large model; data is fine", _model),
    Planted(
        "objective",
        "python_in_objective",
        "an objective that reads 3,000 values with .item()",
        lambda folder: _objective(folder, 3000),
        Remedy(lambda folder: _objective(folder, 0)),
    ),
    Planted(
        "looping",
        "python_in_model",
        "a model that loops over values in Python",
        lambda folder: _looping(folder, 25_000),
        Remedy(lambda folder: _looping(folder, 0)),
    ),
    Planted(
        "augment",
        "python_in_augment",
        "an augment that changes an image after the other, row by row",
        lambda folder: _augment(folder, 16),
        Remedy(lambda folder: _augment(folder, 0)),
    ),
    Planted(
        "copies",
        "stream",
        "copies to the device that nothing overlaps",
        _copied,
        obstacle=needs_gpu,
    ),
    Planted(
        "syncs",
        "synchronizations",
        "an objective that waits for the device 300 times",
        lambda folder: _objective(folder, 300),
        Remedy(lambda folder: _objective(folder, 0)),
        obstacle=needs_gpu,
    ),
    Planted("kernels", "compile_model", "many small kernels", _kernels, obstacle=needs_gpu),
    Planted("tiny", "larger_batch", "batches of one record", _tiny),
)
