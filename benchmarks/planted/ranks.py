"""Causes among several ranks."""

from pathlib import Path

from planted.contract import Planted, Remedy
from planted.pictures import write_raw

TWO = ("parallel=ddp", "parallel.num_processes=2", "parallel.sync_batch_norm=false")


def _of_ranks(folder: Path, *words: str) -> list[str]:
    return [
        *TWO,
        *("model.in_channels=3", "model.num_classes=2", "model.width=8"),
        *("allow_targets=[planted]", "optim.lr=0.001", "data.val=null", "batch_size=32"),
        "data=hdf5",
        f"data.train={write_raw(folder / 'raw.h5', 2048, 64)}",
        *words,
    ]


def _sleepy(folder: Path, seconds: float) -> list[str]:
    model = ("model._target_=planted.rank_users.SleepyModel", f"+model.seconds={seconds}")
    return _of_ranks(folder, *model)


def _wide(folder: Path, width: int) -> list[str]:
    words = _of_ranks(folder, "model._target_=planted.rank_users.WideModel")
    return [word for word in words if not word.startswith("model.width")] + [f"model.width={width}"]


def _uneven(folder: Path, longest: int) -> list[str]:
    """Records of several lengths, each batch as long as its longest: a rank has a long one."""
    dataset = f"{{_target_: planted.rank_users.Lengths, longest: {longest}}}"
    data = ("data=dataset", f"data.train={dataset}", "data.val=null")
    fields = ("data.fields=[image,label]", "data.ragged=[image]")
    model = (
        "model=null",
        "+model._target_=planted.rank_users.OverPositions",
        "+model.num_classes=2",
    )
    own = ("allow_targets=[planted]", "optim.lr=0.001", "batch_size=8", "augment=none")
    return [*TWO, *data, *fields, *model, *own]


PLANTED = (
    Planted(
        "rank",
        "slow_rank",
        "rank 1 sleeps in its forward pass",
        lambda folder: _sleepy(folder, 0.01),
        Remedy(lambda folder: _sleepy(folder, 0.0)),
    ),
    Planted(
        "collectives",
        "slow_collectives",
        "many weights for little computing: gradients of 25 MB in every step",
        lambda folder: _wide(folder, 2048),
    ),
    Planted(
        "uneven",
        "uneven_ranks",
        "records of several lengths, of which one rank has the longest",
        lambda folder: _uneven(folder, 4000),
    ),
)
