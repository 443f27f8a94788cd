import os
from types import SimpleNamespace

import pytest

from framework.measure import disk as module
from framework.measure.disk import Piece, disk_rate, file_system

PLACES = {"/dev/shm": "tmpfs", "/": "ext4", "/mnt/data": "nfs4"}
MOUNTS = [SimpleNamespace(mountpoint="/mnt/data", fstype="cifs")] + [
    SimpleNamespace(mountpoint=place, fstype=system) for place, system in PLACES.items()
]


@pytest.mark.parametrize(
    ("path", "system"),
    [
        ("/home/me", "ext4"),
        ("/dev/shm/a", "tmpfs"),
        ("/mnt/data", "nfs4"),
        ("/mnt/database", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_tells_the_file_system(monkeypatch, path, system):
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: MOUNTS)
    assert file_system(path) == system


@pytest.fixture
def pieces(tmp_path):
    """Return 64 pieces of a file that lies on a disk."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 20))
    return [Piece(str(path), 16000 * number + 5, 15000) for number in range(64)]


def test_reads_that_sleep_wait_beside_each_other(pieces, monkeypatch):
    def slow(piece):
        module.time.sleep(0.02)
        return piece.length

    monkeypatch.setattr(module, "_read", slow)
    rate = disk_rate(pieces, 0.5)
    assert rate.cold < 15000 / 0.02
    assert rate.cold_many > 2 * rate.cold


def test_files_on_a_disk_have_a_rate(pieces):
    rate = disk_rate(pieces, 0.2)
    if rate is None:
        pytest.skip("this file system has no direct access")
    assert min(rate) > 0


@pytest.mark.parametrize("num_bytes", [0, 10])
def test_a_store_of_one_record_or_of_empty_ones_has_no_rate(pieces, monkeypatch, num_bytes):
    monkeypatch.setattr(module, "_read", lambda _: num_bytes)
    few = pieces[: 1 if num_bytes else 4]
    assert disk_rate(few, 0.1) is None
