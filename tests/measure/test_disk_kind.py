from types import SimpleNamespace

import pytest

from framework.measure.disk_kind import disk_kind, file_system

MOUNTS = [
    SimpleNamespace(mountpoint=place, fstype=system)
    for place, system in (
        ("/dev/shm", "tmpfs"),
        ("/", "ext4"),
        ("/mnt/data", "cifs"),
        ("/mnt/data", "nfs4"),
    )
]


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("/home/me", "ext4"),
        ("/dev/shm/a", "tmpfs"),
        ("/mnt/data", "nfs4"),
        ("/mnt/database", "ext4"),
    ],
)
def test_the_innermost_and_latest_mount_tells_the_file_system(monkeypatch, path, wanted):
    monkeypatch.setattr("psutil.disk_partitions", lambda **_: MOUNTS)
    assert file_system(path) == wanted


def test_every_place_has_a_kind(tmp_path):
    assert disk_kind(str(tmp_path)).split()[0] in {
        "memory",
        "network",
        "rotating",
        "solid",
        "unknown",
    }
