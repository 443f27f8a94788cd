"""Causes among several ranks."""

from pathlib import Path

from planted.contract import Planted, Remedy, unlimited
from planted.limits import no_network, slow_network
from planted.pictures import write_raw

TWO = ("parallel=ddp", "parallel.num_processes=2", "parallel.sync_batch_norm=false")


def _of_ranks(folder: Path, *words: str, width: int = 8, batch_size: int = 32) -> list[str]:
    return [
        *TWO,
        *("model.in_channels=3", "model.num_classes=2", f"model.width={width}"),
        *("allow_targets=[planted]", "optim.lr=0.001", "data.val=null"),
        f"batch_size={batch_size}",
        "data=hdf5",
        f"data.train={write_raw(folder / 'raw.h5', 2048, 64)}",
        *words,
    ]


def _sleepy(folder: Path, seconds: float) -> list[str]:
    model = ("model._target_=planted.rank_users.SleepyModel", f"+model.seconds={seconds}")
    return _of_ranks(folder, *model)


def _wide(folder: Path) -> list[str]:
    """Return words for gradients of 3 MB in every step, beside much computing."""
    model = "model._target_=planted.rank_users.WideModel"
    return _of_ranks(folder, model, width=256, batch_size=1024)


def _uneven(folder: Path, neighbors: int) -> list[str]:
    """Return words for records of several lengths, of which each rank has one in a step."""
    lengths = f"planted.rank_users.Lengths, longest: 60000, neighbors: {neighbors}"
    data = ("data=dataset", f"data.train={{_target_: {lengths}}}", "data.val=null")
    fields = ("data.fields=[image,label]", "data.ragged=[image]", "shuffle=false")
    model = (
        "model=null",
        "+model._target_=planted.rank_users.OverPositions",
        "+model.num_classes=2",
    )
    own = ("allow_targets=[planted]", "optim.lr=0.001", "batch_size=2", "augment=none")
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
        "gradients of 3 MB over a network of 500 Mbit/s",
        _wide,
        Remedy(_wide, around=unlimited),
        around=slow_network(500),
        obstacle=no_network,
    ),
    Planted(
        "uneven",
        "uneven_ranks",
        "records of several lengths, of which one rank has the longest",
        lambda folder: _uneven(folder, 1),
        Remedy(lambda folder: _uneven(folder, 2)),
    ),
)
