import mmap
import os
from pathlib import Path

import pytest

from framework.errors import ResourceError
from framework.store.page_cache import cached_share, drop_cached


@pytest.fixture
def on_disk():
    """Write a file of 64 pages on a disk, and yield its path."""
    path = Path(f"/var/tmp/paceline-test-{os.getpid()}")
    path.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    yield str(path)
    path.unlink()


def test_what_was_dropped_is_on_the_disk_only(on_disk):
    assert cached_share([on_disk]) == 1.0
    try:
        drop_cached([on_disk])
    except ResourceError as error:
        pytest.skip(f"this file system keeps its pages: {error}")
    assert cached_share([on_disk]) == 0.0
