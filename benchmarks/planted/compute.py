"""Causes in computing."""

from pathlib import Path

from planted.contract import Planted
from planted.pictures import write_raw


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


PLANTED = (Planted("model", "data_is_fine", "an over-large model; data is fine", _model),)
