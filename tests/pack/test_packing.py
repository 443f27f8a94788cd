import numpy as np
import pytest

from framework.pack.packing import BadItem, JobResult, Journal

CRCS = np.array([10, 1 << 31], np.uint32)  # one is a new line


@pytest.fixture
def journal():
    return Journal("x.h5", ".h5")


def make_done(number=3, size=5, records=2):
    return JobResult(
        number,
        records,
        10,
        size,
        "ab",
        "cd",
        [1, 1],
        "ef",
        None,
        [BadItem(1, "b\udcffd\n", "D106", "broken")],
    )


@pytest.mark.parametrize("data", [None, b"1234"])
def test_a_note_without_its_file_is_not_enough(journal, data):
    journal.files.mkdir(parents=True)
    if data is not None:
        journal.file(3).write_bytes(data)
    journal.note(make_done(), CRCS)
    assert journal.done(3) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"number": 1}', '{"bad": 5}'])
def test_a_damaged_note_counts_for_nothing(journal, text):
    journal.folder.mkdir()
    (journal.folder / "000003.job").write_text(text)
    (journal.folder / "job.json").write_text("{")
    assert journal.done(3) is None
    assert journal.begun() == {}
