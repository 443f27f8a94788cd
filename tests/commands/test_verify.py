from pathlib import Path

import h5py
import pytest

from tests.cli.command import is_one_error_line, paceline


@pytest.fixture
def store():
    assert paceline("pack", "input=digits", "output.path=d.h5").code == 0
    return "d.h5"


def test_a_good_store_is_said_to_be_good(store):
    done = paceline("verify", store)
    assert done.code == 0
    assert done.out.splitlines()[0].startswith("d.h5: 1437 records, ")
    assert done.out.endswith("verified 1 stores, 1437 records: 0 stores and 0 records are bad\n")
    assert done.err == ""


def test_bad_records_are_named_and_counted_over_several_stores(store):
    data = bytearray(Path(store).read_bytes())
    data[20_000] ^= 4
    Path("bad.h5").write_bytes(data)
    done = paceline("verify", store, "bad.h5", "workers=0")
    assert done.code == 3
    assert "bad.h5: record " in done.out
    assert done.out.endswith("verified 2 stores, 2874 records: 1 stores and 1 records are bad\n")
    assert is_one_error_line(done, "D156")


def test_what_is_not_there_or_another_programs_is_reported_with_its_own_fix(store):
    with h5py.File("other.h5", "w") as file:
        file["x"] = [1, 2]
    done = paceline("verify", "typo.h5", "workers=0")
    assert done.last_line.startswith("error[D101]: typo.h5: no such file")
    done = paceline("verify", "other.h5", "typo.h5", "workers=0")
    assert done.last_line.startswith("error[D103]: other.h5: ")
    done = paceline("verify", store, "typo.h5", "workers=0")
    assert "1 of 2 stores are not what was packed" in done.last_line


@pytest.mark.parametrize("words", [[], ["stores=5"], ["x.h5", "workers=-1"], ["x", "stores=[y]"]])
def test_a_command_line_that_cannot_be_is_refused(words):
    done = paceline("verify", *words)
    assert done.code == 2
    assert done.err.startswith("error[C10")
