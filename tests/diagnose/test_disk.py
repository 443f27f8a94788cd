import mmap
import os
from pathlib import Path

import pytest

from framework.diagnose.disk import cached_share, disk_kind, file_system

MOUNTS = """22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /dev/shm rw - tmpfs tmpfs rw
31 22 0:40 /data /mnt/data rw master:2 - nfs4 server:/data rw
garbage
"""


@pytest.mark.parametrize(("number", "wanted"), [("8:1", "ext4"), ("0:25", "tmpfs"), ("0:40", "nfs4"), ("9:9", "")])
def test_the_file_system_of_a_device(number, wanted):
    assert file_system(number, MOUNTS) == wanted


def test_shared_memory_is_memory():
    assert disk_kind("/dev/shm") == "memory"


def test_every_place_has_a_kind(tmp_path):
    assert disk_kind(str(tmp_path)).split()[0] in {"memory", "network", "rotating", "solid", "unknown"}


def test_what_was_just_written_is_in_the_page_cache(tmp_path):
    (tmp_path / "a").write_bytes(os.urandom(1 << 20))
    assert cached_share([str(tmp_path / "a")]) == 1.0


@pytest.mark.skipif(disk_kind("/var/tmp") == "memory", reason="needs a disk")
def test_what_was_dropped_from_the_page_cache_is_told():
    path = Path(f"/var/tmp/paceline-test-{os.getpid()}")
    try:
        path.write_bytes(os.urandom(64 * mmap.PAGESIZE))
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        share = cached_share([str(path)])
    finally:
        path.unlink()
    if share == 1.0:
        pytest.skip("this file system keeps its pages")
    assert share < 0.5


def test_empty_files_have_no_share(tmp_path):
    (tmp_path / "empty").touch()
    assert cached_share([str(tmp_path / "empty")]) is None
    assert cached_share([]) is None
