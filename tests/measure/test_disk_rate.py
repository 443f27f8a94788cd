import os

import pytest

from framework.measure import disk_rate as module
from framework.measure.disk_rate import Piece, disk_rate


@pytest.fixture
def pieces(tmp_path):
    """64 pieces of a file that lies on a disk."""
    path = tmp_path / "data"
    path.write_bytes(os.urandom(1 << 20))
    return [Piece(str(path), 16000 * number + 5, 15000) for number in range(64)]


def test_memory_is_faster_than_a_disk_of_which_each_read_sleeps(pieces, monkeypatch):
    read = module._read

    def slow(piece, direct):
        if direct:
            module.time.sleep(0.02)
        return read(piece, direct)

    monkeypatch.setattr(module, "_read", slow)
    rate = disk_rate(pieces, 1.0)
    assert rate.cold < 15000 / 0.02
    assert rate.cold_many > 2 * rate.cold  # its reads wait beside each other
    assert rate.warm > rate.cold


def test_a_file_that_is_gone_has_no_rate():
    assert disk_rate([Piece("nowhere", 0, 10)] * 4, 0.1) is None


def test_a_piece_at_the_end_of_a_file_counts_what_it_has(tmp_path):
    path = tmp_path / "short"
    path.write_bytes(b"x" * 5000)
    assert module._read(Piece(str(path), 4096, 904), direct=False) == 904
