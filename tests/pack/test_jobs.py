import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from framework.contracts.records import Chunk
from framework.errors import DataError
from framework.input import folder, function, pairs
from framework.input.list import ListInput
from framework.pack import jobs, marked
from framework.pack.jobs import PackWork, do_job, make_plan, stamps
from framework.pack.packing import Journal
from framework.store import file_store, hdf5_store
from tests.contract.cases import jpeg
from tests.input.inputs import Input, packing


def make_work(source):
    return PackWork(
        packing(source=source), source.manifest, Journal("x.h5", ".h5"), make_plan(source, None)
    )


def done(work, number=0):
    row = np.zeros(4, np.int64)
    return do_job(work, number, row, lambda: None), row


@pytest.mark.parametrize("is_cold", [True, False])
def test_the_files_of_the_next_block_are_read_ahead_while_files_are_cold(is_cold, monkeypatch):
    Path("photos/ant").mkdir(parents=True)
    for number in range(30):
        Path(f"photos/ant/{number:02}.jpg").write_bytes(jpeg(number))
    asked = []
    monkeypatch.setattr(jobs, "ask_item_files", lambda _, items: asked.append(items))
    monkeypatch.setattr(jobs.DiskReads, "were_made", lambda *_: is_cold)
    work = make_work(folder.FolderInput("photos", None, None))
    done(work._replace(plan=replace(work.plan, items_per_job=30, items_per_block=8)))
    blocks = [range(16), range(16, 24), range(24, 30)]
    assert asked == (blocks if is_cold else [])


def test_a_job_gives_a_file_that_is_noted_when_it_is_there():
    work = make_work(Input(100))
    result, row = done(work)
    assert result.num_records == 100
    assert result.size_bytes == os.path.getsize("x.h5.parts/files/000000.h5")
    assert result.digest == hdf5_store.HDF5Store("x.h5.parts/files/000000.h5").manifest.digest
    assert result.digest == file_store.digest(work.journal.crcs(0))
    assert result.first_key is None
    assert result.class_counts == [34, 33, 33]
    assert work.journal.done(0) == result
    assert row[0] == 100


def test_labels_count_by_class_except_ignored_ones():
    labels = np.array([[0], [2], [-100], [2]])
    keys = ["a", "b", "c", "d"]
    assert jobs.class_counts(Chunk({"label": labels}, keys), 3).tolist() == [1, 0, 2]
    with pytest.raises(DataError, match=r"D152.*b: has label 2, but classes are numbered"):
        jobs.class_counts(Chunk({"label": labels}, keys), 2)


def test_records_that_do_not_fit_into_memory_are_read_twice(monkeypatch):
    source = Input(100)
    first, _ = done(make_work(source))
    monkeypatch.setattr(jobs, "HELD_BYTES", 1000)
    reads = []
    real = source.read
    source.read = lambda *span: reads.append(span) or real(*span)
    assert done(make_work(source))[0] == first
    assert reads.count((0, 100)) == 2


class Growing(Input):
    """Item 3 is a file that changes whenever it is read, ``times`` times."""

    def __init__(self, times):
        super().__init__(10)
        self.times = times
        for number in range(10):
            Path(f"{number}.bin").write_text("x")

    def item_files(self, index):
        return (f"{index}.bin",)

    def name(self, index):
        return f"{index}.bin"

    def read(self, start, stop):
        if self.times and start <= 3 < stop:
            self.times -= 1
            with open("3.bin", "a") as file:
                file.write("more")
        return super().read(start, stop)


def test_a_file_that_changes_while_it_is_read_is_read_again():
    result, row = done(make_work(Growing(2)))  # once in the sample
    assert result.bad == []
    assert row[0] == 10


def test_a_file_that_goes_on_changing_is_named():
    with pytest.raises(DataError, match=r"D153.*3\.bin"):
        done(make_work(Growing(99)))


def test_a_record_of_another_shape_is_named():
    class Odd(Input):
        def read(self, start, stop):
            chunk = super().read(start, stop)
            label = chunk.records["label"].astype(np.int32)
            return chunk._replace(records={**chunk.records, "label": label})

    with pytest.raises(DataError, match=r"D151.*k0.*label is int32"):
        done(make_work(Odd(10)))


def make_list():
    Path("list.csv").write_text("image,label\na/0.jpg,x\na/1.jpg,y\n")
    return ListInput("list.csv", True, None, None, False, None, None)


def make_pairs():
    return pairs.PairsInput({"blurry": "a", "sharp": "b"}, "fail")


FILE_INPUTS = [
    *((make_list, "a/1.jpg", [1]), (make_list, "list.csv", [0, 1]), (make_pairs, "a/1.jpg", [1])),
    (make_pairs, "b/1.jpg", [1]),
    (lambda: folder.FolderInput(".", None, None), "a/1.jpg", [1]),
    (lambda: function.FunctionInput("f", lambda path: {"x": 0}, "a", None, None), "a/1.jpg", [1]),
    (lambda: marked.MarkedInput(make_pairs(), None, None), "b/1.jpg", [1]),
]


def write_images():
    for path in ("a/0.jpg", "a/1.jpg", "b/0.jpg", "b/1.jpg"):
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(jpeg(0))


@pytest.mark.parametrize(("make", "path", "items"), FILE_INPUTS)
def test_a_change_of_a_file_changes_the_stamps_of_its_items(make, path, items):
    write_images()
    source = make()
    before = stamps(source, 0, 2)
    assert stamps(source, 0, 2) == before
    with open(path, "a") as file:
        file.write("more")
    after = stamps(source, 0, 2)
    assert [item for item in range(2) if after[item] != before[item]] == items
