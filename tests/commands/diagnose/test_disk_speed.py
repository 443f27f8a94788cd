import pytest

from framework.commands.diagnose.disk_speed import disk_kind, file_system

MOUNTS = """22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:25 / /dev/shm rw - tmpfs tmpfs rw
31 22 0:40 /data /mnt/data rw master:2 - nfs4 server:/data rw
garbage
"""


@pytest.mark.parametrize(
    ("number", "wanted"), [("8:1", "ext4"), ("0:25", "tmpfs"), ("0:40", "nfs4"), ("9:9", "")]
)
def test_the_file_system_of_a_device(number, wanted):
    assert file_system(number, MOUNTS) == wanted


def test_shared_memory_is_memory():
    assert disk_kind("/dev/shm") == "memory"


def test_every_place_has_a_kind(tmp_path):
    assert disk_kind(str(tmp_path)).split()[0] in {
        "memory",
        "network",
        "rotating",
        "solid",
        "unknown",
    }
