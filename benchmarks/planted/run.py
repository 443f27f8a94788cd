"""Causes in what a run does beside its steps: validating, saving and reporting."""

from pathlib import Path

from planted.contract import Planted
from planted.pictures import write_raw
from planted.users import SMALL


def _small(folder: Path, count: int) -> list[str]:
    train = write_raw(folder / f"raw{count}.h5", count, 64)
    words = [word for word in SMALL if not word.startswith(("data.val", "report_every"))]
    return [*words, "batch_size=64", "data=hdf5", f"data.train={train}"]


def _validating(folder: Path) -> list[str]:
    """Return words for epochs of four steps, each with a validation on 64 batches."""
    val = write_raw(folder / "val4096.h5", 4096, 64)
    return [
        *_small(folder, 256),
        f"data.val={val}",
        "report_every=50",
        "checkpoint.every_epochs=null",
    ]


def _saving(folder: Path) -> list[str]:
    words = [
        *_small(folder, 2048),
        "data.val=null",
        "report_every=50",
        "checkpoint.every_epochs=null",
    ]
    return [*words, "checkpoint.every_steps=1"]


def _reporting(folder: Path) -> list[str]:
    words = [*_small(folder, 8192), "data.val=null", "report_every=1"]
    return [
        *words,
        "+sink.board._target_=planted.slow_sink.SlowSink",
        "checkpoint.every_epochs=null",
    ]


PLANTED = (
    Planted("validating", "frequent_validation", "a validation after every 4 steps", _validating),
    Planted("saving", "frequent_saving", "a save after every step", _saving),
    Planted("reporting", "chatty_sinks", "a report to a slow sink after every step", _reporting),
)
