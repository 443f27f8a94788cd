from pathlib import Path

import pytest

from framework.pack import pack_store, verify_store
from tests.input.inputs import COUNT, packing


def flip(path, marker, bit=1):
    """Change a bit behind the first place where ``marker`` stands."""
    data = bytearray(Path(path).read_bytes())
    data[data.index(marker) + len(marker)] ^= bit
    Path(path).write_bytes(data)


def silent(_):
    pass


@pytest.mark.parametrize(
    ("path", "one_file", "num_workers"), [("x.lmdb", True, 0), ("x.h5", False, 2)]
)
def test_a_good_store_has_nothing_wrong(path, one_file, num_workers):
    packed = pack_store.pack(packing(path, one_file=one_file))
    told = []
    report = verify_store.verify(path, num_workers, told.append)
    assert report.findings == []
    assert (report.num_records, report.num_bytes) == (COUNT, packed.num_bytes)
    assert told[-1].records == COUNT


@pytest.mark.parametrize(("path", "one_file"), [("x.lmdb", True), ("x.h5", False)])
def test_a_bad_record_is_named(path, one_file):
    pack_store.pack(packing(path, one_file=one_file))
    flip(path if one_file else f"{path}/000002{Path(path).suffix}", (2000).to_bytes(4, "big") * 20)
    report = verify_store.verify(path, 2, silent)
    assert report.num_bad == 1
    assert "(k2000): does not match its CRC32" in report.findings[0]
    assert len(report.findings) == (1 if one_file else 2)  # the file's SHA-256 too


def test_a_flip_beside_the_records_is_found_in_a_folder():
    pack_store.pack(packing(one_file=False))
    flip("x.h5/000001.h5", b"\x89HDF", bit=0)
    flip("x.h5/000001.h5", b"TREE", bit=0)
    assert verify_store.verify("x.h5", 0, silent).findings == []
    with open("x.h5/000001.h5", "r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    assert verify_store.verify("x.h5", 0, silent).findings


@pytest.mark.parametrize(
    ("path", "ruin"), [("x.h5", "text"), ("x.lmdb", "short"), ("x.h5", "gone")]
)
def test_what_is_no_store_is_a_finding(path, ruin):
    pack_store.pack(packing(path))
    data = Path(path).read_bytes()
    Path(path).write_bytes(data[: len(data) // 2] if ruin == "short" else b"hello")
    if ruin == "gone":
        Path(path).unlink()
    report = verify_store.verify(path, 1, silent)
    assert len(report.findings) == 1
    assert report.findings[0].startswith("error[D10")
