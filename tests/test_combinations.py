"""Every combination of the four groups runs, and no choice changes what is learned."""

import json
from pathlib import Path

import pytest

from tests.cli.command import losses, started

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # the first test makes the sweep

LOADERS = "loader=plain,prefetch"
STARTS = "workers.start_method=fork,forkserver,spawn"
SHORT = ["epochs=1", "report_every=1", "sink=jsonl"]  # 12 steps
DDP_BOUND = 1e-5  # relative: sums over ranks are rounded in another order
AMP_BOUND = 0.15  # relative to fp32, over 12 steps: bf16 has 8 bits of mantissa


def jobs(folder: Path) -> dict[tuple[str, ...], Path]:
    """Return the jobs of a sweep by their choices."""
    files = folder.glob("*/summary.json")
    return {tuple(json.loads(p.read_text())["choices"].values()): p.parent for p in files}


def furthest(some: list[float], others: list[float]) -> float:
    """Return the largest relative difference of two lists of losses."""
    return max(abs(a - b) / abs(b) for a, b in zip(some, others, strict=True))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Run all 54 combinations of the digits recipe with one command."""
    folder = tmp_path_factory.mktemp("sweep")
    grid = ["data=hdf5,lmdb,dali", "loader=plain,prefetch,stream", "parallel=none,dp,ddp"]
    grid.append("precision=fp32,amp")
    done = started("train", "-m", *grid, *SHORT, "hydra.sweep.dir=sweep", cwd=folder, limit_s=900)
    assert done.code == 0, done.err
    return jobs(folder / "sweep")


def test_all_54_combinations_run_in_directories_of_their_own(sweep):
    assert len(sweep) == len(set(sweep.values())) == 54
    assert all(len(losses(job)) == 12 for job in sweep.values())


@pytest.mark.parametrize("precision", ["fp32", "amp"])
def test_in_one_process_all_losses_of_a_precision_are_identical(sweep, precision):
    chosen = [key for key in sweep if key[2] != "ddp" and key[3] == precision]
    lists = [losses(sweep[key]) for key in chosen]
    assert len(lists) == 18
    assert all(curve == lists[0] for curve in lists)


def test_two_ranks_agree_with_one(sweep):
    alone = losses(sweep["hdf5", "plain", "none", "fp32"])
    chosen = [key for key in sweep if key[2] == "ddp" and key[3] == "fp32"]
    lists = [losses(sweep[key]) for key in chosen]
    assert len(lists) == 9
    assert all(furthest(curve, alone) < DDP_BOUND for curve in lists)


def test_mixed_precision_stays_near_single_precision(sweep):
    single = losses(sweep["hdf5", "plain", "none", "fp32"])
    lists = [losses(job) for choice, job in sweep.items() if choice[3] == "amp"]
    assert len(lists) == 27
    assert all(0 < furthest(curve, single) < AMP_BOUND for curve in lists)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("grid", "count"),
    [
        ("data=hdf5,lmdb,folder workers.num=0,2 workers.kind=thread,process " + LOADERS, 24),
        ("data=dali workers.num=0,2 " + LOADERS, 4),
        ("data=hdf5,lmdb data.stage=ram,device verify=off,always", 8),
        ("data=hdf5,folder workers.num=2 workers.kind=process " + STARTS, 6),
    ],
)
def test_how_and_from_where_records_are_read_changes_nothing(sweep, tmp_path, grid, count):
    words = [*grid.split(), *SHORT, "hydra.sweep.dir=sweep"]
    done = started("train", "-m", *words, limit_s=280)
    assert done.code == 0, done.err
    lists = [losses(path.parent) for path in (tmp_path / "sweep").glob("*/summary.json")]
    assert len(lists) == count
    expected = losses(sweep["hdf5", "plain", "none", "fp32"])
    assert all(curve == expected for curve in lists)
