"""The benchmark of what reading costs the launching thread reads while it launches."""

from pathlib import Path

from tests.conftest import make_records, write_store

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def test_records_are_read_beside_the_launching_thread(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import launch

    path = write_store(str(tmp_path / "a.h5"), make_records(200))
    beside = launch.beside_reading([f"data.train={path}", "workers.num=1"], 0.1, 0.05)
    assert beside.operations_per_s > 0
    assert beside.records_per_s > 0
    assert launch.beside_hashing(0.05) > 0
