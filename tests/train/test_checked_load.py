"""Files of torch that declare more than they hold: each is refused before memory is taken."""

import _codecs
import io
import json
import struct
import zipfile
from pathlib import Path

import pytest
import torch

from framework.train.checkpoint import Damaged, load_checked, read_state
from tests.faults.hostile import Reduced, zipped
from tests.train.test_checkpoint import with_end

FLOATS = torch.zeros(1000)
TEXT = "x" * 10_000


def repeated(times, inner):
    """Return lists in lists, each of which holds the next one many times."""
    for _ in range(times):
        inner = [inner] * 10
    return inner


def holding_itself():
    value = []
    value.append(value)
    return value


def of_torch(value, **options):
    file = io.BytesIO()
    torch.save({"model": value}, file, **options)
    return file.getvalue()


def loaded(data):
    Path("x.pt").write_bytes(data)
    with open("x.pt", "rb") as file:
        return load_checked(file)


def refusal(data):
    with pytest.raises(Damaged) as raised:
        loaded(data)
    return str(raised.value)


LIES = {
    "a stride of 0": (lambda: torch.zeros(1).expand(1 << 40), "too few numbers"),
    "overlapping rows": (lambda: FLOATS.unfold(0, 500, 1), "too few numbers"),
    "many views": (lambda: [FLOATS[n:] for n in range(50)], "too often"),
    "sparse": (FLOATS.to_sparse, "more than plain weights"),
    "meta": (lambda: torch.empty(1 << 50, device="meta"), "more than plain weights"),
    "bytearray": (lambda: Reduced(bytearray, 1 << 40), "not plain weights"),
    "an empty tensor": (lambda: Reduced(torch.FloatTensor, 1 << 40), "not plain weights"),
    "a list many times": (lambda: repeated(9, []), "too often"),
    "copies of a text": (
        lambda: [Reduced(_codecs.encode, TEXT, "latin1") for _ in range(99)],
        "too often",
    ),
    "a list that holds itself": (holding_itself, "holds itself"),
    "a deep list": (lambda: json.loads("[" * 150 + "]" * 150), "100 deep"),
}


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize(("make", "what"), LIES.values(), ids=LIES)
def test_a_value_that_takes_more_than_its_file_is_refused(make, what, is_zip):
    assert what in refusal(of_torch(make(), _use_new_zipfile_serialization=is_zip))


def test_a_valid_stamp_skips_no_check():
    Path("x.pt").write_bytes(with_end(of_torch(torch.zeros(1).expand(1 << 40))))
    with pytest.raises(Damaged, match="too few numbers"):
        read_state(Path("x.pt"))


HONEST = {
    "tied weights": [FLOATS] * 100,
    "a dtype without storages": torch.ones(3).to(torch.uint16),
    "parts of a tensor": [*FLOATS.view(10, 100)],
    "transposed": torch.zeros(30, 20).T,
    "empty": torch.zeros(0, 5),
    "Python's values": [{1, 2}, 1j, b"x", torch.Size([3]), torch.float32, torch.device("cpu")],
    "shared": [(0.9, 0.999)] * 100,
    "a parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("value", HONEST.values(), ids=HONEST)
def test_honest_values_are_read(value):
    read = loaded(of_torch(value))["model"]
    assert str(read) == str(value)


def test_a_file_that_unpacks_to_more_than_it_is_long_is_refused():
    with zipfile.ZipFile("x.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data.pkl", bytes(10_000_000))
    assert "compressed" in refusal(Path("x.pth").read_bytes())


def test_members_that_overlap_are_refused():
    data = bytearray(zipped(("x/data.pkl", b"x" * 100)))
    start = data.index(b"PK\x01\x02")
    for place in (start + 20, start + 24):  # both sizes in the directory of the archive
        data[place : place + 4] = (1 << 30).to_bytes(4, "little")
    assert "more bytes than it has" in refusal(data)


def test_names_that_torch_takes_for_one_are_refused():
    assert "one name" in refusal(zipped(("x/data.pkl", b"N."), ("x/DATA.pkl", b"N.")))


def test_a_directory_that_torch_reads_elsewhere_is_refused():
    inner, outer = (bytearray(zipped(("x/data.pkl", text))) for text in (b"N.", b"I1\n."))
    struct.pack_into("<L", outer, len(outer) - 6, 7)
    assert "two directories" in refusal(inner + outer)


def test_more_numbers_than_a_part_has_are_refused():
    data = of_torch(torch.zeros(7))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        parts = [(name, archive.read(name)) for name in archive.namelist()]
    parts = [(name, part.replace(b"K\x07", b"M\x07\x07")) for name, part in parts]
    assert "not plain weights" in refusal(zipped(*parts))
