"""Items are stored once and served afterwards, and batches stay equal by hash."""

import hashlib
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from framework.commands.watch.item_check import checked_indices
from framework.commands.watch.item_store import ItemStores, ServedItems, key_of
from framework.errors import ResourceError
from framework.measure.host import files_being_read
from framework.store.hdf5_store import HDF5Writer
from framework.store.open_store import open_store
from tests.commands.watch.loops import hooked


@pytest.fixture(autouse=True)
def only_own_files(monkeypatch):
    """Leave out the files that the process of the tests has open before a test begins."""
    before = files_being_read()

    def own():
        return [path for path in files_being_read() if path not in before]

    monkeypatch.setattr("framework.commands.watch.item_files.files_being_read", own)


class Counted(Dataset):
    """Items of several types. Reading one leaves a byte in a file."""

    def __init__(self, log, count=12, scale=1):
        self.log = log
        self.count = count
        self.scale = scale

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        with open(self.log, "ab") as file:
            file.write(b".")
        image = np.random.default_rng(index).integers(0, 255, (3, 4, 4)).astype(np.uint8)
        return {"x": torch.from_numpy(image) * self.scale, "n": index, "f": np.float32(index / 3)}


def digest(loader, epochs=3):
    """Return the hash of all batches."""
    result = hashlib.sha256()
    torch.manual_seed(5)
    for _ in range(epochs):
        for batch in loader:
            for name, value in batch.items():
                result.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
                result.update(value.numpy().tobytes())
    return result.hexdigest()


def reads(log):
    return Path(log).stat().st_size if Path(log).exists() else 0


def served_digest(dataset, **options):
    stores = ItemStores("cache")
    with hooked(served=stores.served):
        result = digest(DataLoader(dataset, 4, shuffle=True, **options))
    stores.close()
    return result, stores


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 1, "persistent_workers": True}],
    ids=["none", "fork", "persistent"],
)
def test_batches_stay_equal_by_hash(options):
    wanted = digest(DataLoader(Counted("a"), 4, shuffle=True, **options))
    result, stores = served_digest(Counted("b"), **options)
    assert result == wanted
    assert reads("a") == 36
    num_compared = 0 if "persistent_workers" in options else 2 * 5  # for each later iterator
    assert reads("b") == 12 + 2 * 12 + 1 + num_compared  # once, and for the check
    assert "12 items were stored" in next(iter(stores.notes.values()))
    assert sorted(path.suffix for path in Path("cache").iterdir()) == [".files", ".h5"]


@pytest.mark.slow
def test_spawned_workers_share_the_store():
    options = {"num_workers": 2, "multiprocessing_context": "spawn"}
    wanted = digest(DataLoader(Counted("a"), 4, shuffle=True))
    assert served_digest(Counted("b"), **options)[0] == wanted


def test_the_next_run_reads_the_store():
    first, _ = served_digest(Counted("b"))
    before = reads("b")
    again, stores = served_digest(Counted("b"))
    assert again == first
    assert reads("b") - before == 2 * 12 + 1 + 2 * 5  # the check, and what is compared later
    assert "of an earlier run" in next(iter(stores.notes.values()))


def test_the_store_is_one_of_ours():
    served_digest(Counted("b"))
    (path,) = Path("cache").glob("*.h5")
    store = open_store(str(path))
    assert list(store.manifest.fields) == ["x", "n", "f"]
    assert store.read(torch.tensor([7]))["n"].tolist() == [7]
    store.close()


def test_other_arguments_have_another_key():
    key = key_of(Counted("b"))
    assert key == key_of(Counted("b"))
    assert len({key, key_of(Counted("b", 13)), key_of(Counted("b", scale=2))}) == 3


class Hidden(Counted):
    """Its items depend on something that its state does not hold."""

    shift = 0

    def __getitem__(self, index):
        return index + Hidden.shift


def test_a_store_with_other_items_is_made_again(monkeypatch):
    stores = ItemStores("cache")
    for shift in (0, 5):
        monkeypatch.setattr(Hidden, "shift", shift)
        stores = ItemStores("cache")
        served = stores.served(Hidden("b"))
        assert [served[index] for index in range(12)] == [index + shift for index in range(12)]
        stores.close()
    assert "were stored" in next(iter(stores.notes.values()))


def test_items_that_change_between_epochs_are_served_no_more(monkeypatch):
    stores = ItemStores("cache")
    monkeypatch.setattr(Hidden, "shift", 0)
    served = stores.served(Hidden("b"))
    assert [served[index] for index in range(6)] == list(range(6))
    monkeypatch.setattr(Hidden, "shift", 5)
    dataset = Hidden("b")
    assert stores.served(dataset) is dataset
    assert [served[index] for index in range(6)] == list(range(5, 11))
    assert "(item 0: reading it again gives another value)" in next(iter(stores.notes.values()))
    stores.close()
    assert not list(Path("cache").iterdir())


def test_comparing_items_draws_nothing_and_finds_a_changed_item_in_time(monkeypatch):
    dataset = Hidden("b", 60)
    stores = ItemStores("cache")
    monkeypatch.setattr(Hidden, "shift", 0)
    served = stores.served(dataset)
    assert [served[index] for index in range(60)] == list(range(60))
    monkeypatch.setattr(Hidden, "__getitem__", lambda _, index: index + 5 * (index == 17))
    before = torch.get_rng_state()
    rounds = 0
    while stores.served(dataset) is not dataset:
        rounds += 1
    assert 0 < rounds < 600  # another item is compared each time
    assert torch.equal(before, torch.get_rng_state())
    stores.close()


class Arrays(Dataset):
    """Items in files, with names that the state does not hold."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return np.load(f"arrays/{index}.npy")


def served_sum(dataset, workers):
    """Return the sum of all items in each of two epochs, and the note on them."""
    stores = ItemStores("cache")
    with hooked(served=stores.served):
        data = DataLoader(dataset, 4, num_workers=workers)
        sums = [int(sum(batch.sum() for batch in data)) for _ in range(2)]
    stores.close()
    return sums, next(iter(stores.notes.values()))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_is_made_again_after_a_file_has_changed(workers):
    Path("arrays").mkdir()
    for index in range(40):
        np.save(f"arrays/{index}.npy", np.array([index]))
    assert served_sum(Arrays(), workers)[0] == [780, 780]
    sums, note = served_sum(Arrays(), workers)
    assert sums == [780, 780]
    assert note.endswith("none of their 40 files has changed")
    assert 1 not in checked_indices(40)
    np.save("arrays/1.npy", np.array([101]))
    sums, note = served_sum(Arrays(), workers)
    assert sums == [880, 880]
    assert note.endswith("since arrays/1.npy has changed")


def test_a_store_whose_files_are_not_known_says_so_or_is_made_again():
    served_sum(Hidden("b"), 0)
    _, note = served_sum(Hidden("b"), 0)
    assert note.endswith("no file of theirs is known, so that only 12 items were compared")
    (listing,) = Path("cache").glob("*.files")
    listing.unlink()
    assert "did not list" in served_sum(Hidden("b"), 0)[1]


class Random(Counted):
    def __getitem__(self, index):
        return {"a": 1, "noise": torch.rand(2)}


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1])


class Ragged(Counted):
    def __getitem__(self, index):
        return torch.zeros(1 if index < 11 else 2)


@pytest.mark.parametrize(
    ("dataset", "words"),
    [
        (Random("b"), "twice gives another noise"),
        (Stream(), "no items by number"),
        (Dataset(), "the Dataset has no length"),
        (Ragged("b"), r"item 11: field value has the shape \[2\]"),
    ],
)
def test_what_cannot_be_served_is_left_alone_with_a_reason(dataset, words):
    stores = ItemStores("cache")
    assert stores.served(dataset) is dataset
    assert words.replace("\\", "") in next(iter(stores.notes.values()))
    stores.close()
    assert not list(Path().glob("cache/*"))


def test_items_that_were_not_all_read_are_not_kept():
    stores = ItemStores("cache")
    served = stores.served(Counted("b"))
    assert served[3]["n"] == 3
    stores.close()
    assert "11 of 12 items were not read" in next(iter(stores.notes.values()))
    assert not list(Path("cache").iterdir())


class Late(Counted):
    """An item that the check does not look at is different."""

    def __getitem__(self, index):
        return torch.zeros(2 if index == 1 else 1)


def test_an_item_with_another_layout_is_passed_on_and_nothing_is_kept():
    stores = ItemStores("cache")
    served = stores.served(Late("b", 100))
    assert [len(served[index]) for index in range(100)] == [1, 2] + [1] * 98
    assert len(served[1]) == 2
    stores.close()
    assert "item 1: field value" in next(iter(stores.notes.values()))


class Sliced(Counted):
    """It takes negative numbers, lists of numbers and slices too."""

    def __getitem__(self, index):
        return torch.arange(self.count)[index]


def test_indices_that_are_no_numbers_of_items_go_to_the_dataset():
    dataset = Sliced("b")
    indices = [slice(2, 5), 3, [1, 2], torch.tensor([4]), -2, 11]
    wanted = [dataset[index].tolist() for index in indices]
    stores = ItemStores("cache")
    for _ in range(2):  # from the maps, and from the store
        served = stores.served(dataset)
        assert [item.tolist() for item in served.__getitems__(indices)] == wanted
        assert [served[index].tolist() for index in range(12)] == list(range(12))
    assert "were stored" in next(iter(stores.notes.values()))
    stores.close()


class Rare(Counted):
    """A single item, which the check does not look at, is random."""

    def __getitem__(self, index):
        return torch.rand(3) if index == 1 else torch.full((3,), float(index))


def test_what_one_process_sees_of_random_items_stops_the_others():
    stores = ItemStores("cache")
    served = stores.served(Rare("b", 100))
    other = pickle.loads(pickle.dumps(served))
    served[5]
    assert not torch.equal(other[1], served[1])
    dataset = Rare("b", 100)
    assert stores.served(dataset) is dataset
    assert "item 1, or another of its batch, draws" in next(iter(stores.notes.values()))
    stores.close()
    assert not list(Path("cache").iterdir())


class Named(Counted):
    """It has attributes of names that are usual."""

    def __init__(self, log):
        super().__init__(log)
        self.path = self.store = self.dataset = self.items = "its own"


def test_attributes_are_those_of_the_dataset_and_using_them_ends_serving():
    stores = ItemStores("cache")
    served = stores.served(Named("b"))
    assert isinstance(served, ServedItems)
    assert len(served) == 12
    with pytest.raises(AttributeError):
        _ = served.no_such_thing
    assert isinstance(stores.served(Named("b")), ServedItems)
    assert {served.path, served.store, served.dataset, served.items} == {"its own"}
    dataset = Named("b")
    assert stores.served(dataset) is dataset
    stores.close()


def test_an_attribute_that_is_set_changes_the_items():
    stores = ItemStores("cache")
    served = stores.served(Counted("b"))
    before = served[3]["x"]
    served.scale = 2
    assert torch.equal(served[3]["x"], before * 2)
    stores.close()
    assert "a worker sets the Dataset's attribute scale" in next(iter(stores.notes.values()))


KILLED = """
import os, signal
from framework.commands.watch.item_store import ItemStores
from tests.commands.watch.test_item_store import Counted
served = ItemStores("cache").served(Counted("b"))
for index in range(6):
    served[index]
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_removed_and_not_used():
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.is_dir() for path in Path("cache").iterdir()] == [True]
    wanted = digest(DataLoader(Counted("a", scale=2), 4, shuffle=True))
    assert served_digest(Counted("b", scale=2))[0] == wanted  # has another key
    assert sorted(path.suffix for path in Path("cache").iterdir()) == [".files", ".h5"]


def test_a_store_that_cannot_be_written_does_not_stop_the_script(monkeypatch):
    def fail(*_):
        raise ResourceError(101, "cache", "cannot write: No space left on device", "free space")

    monkeypatch.setattr(HDF5Writer, "close", fail)
    wanted = digest(DataLoader(Counted("a"), 4, shuffle=True))
    result, stores = served_digest(Counted("b"))
    assert result == wanted
    assert "No space left" in next(iter(stores.notes.values()))
    assert not list(Path("cache").iterdir())


def test_a_store_that_is_out_of_date_is_no_rank_s_new_one(monkeypatch):
    monkeypatch.setattr(Hidden, "shift", 0)
    stores = ItemStores("cache")
    assert [stores.served(Hidden("b"))[index] for index in range(12)] == list(range(12))
    stores.close()
    monkeypatch.setattr(Hidden, "shift", 5)
    monkeypatch.setenv("LOCAL_RANK", "1")
    stores = ItemStores("cache")
    for _ in range(2):
        served = stores.served(Hidden("b"))
        assert [served[index] for index in range(12)] == list(range(5, 17))
    monkeypatch.delenv("LOCAL_RANK")
    stores.close()


def test_a_worker_that_starts_while_the_store_replaces_the_maps_reads_the_dataset():
    stores = ItemStores("cache")
    served = pickle.loads(pickle.dumps(stores.served(Counted("b"))))
    stores.close()
    assert served[3]["n"] == 3


def test_a_full_disk_is_said_before_anything_is_stored(monkeypatch):
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    stores = ItemStores("cache")
    dataset = Counted("b")
    assert stores.served(dataset) is dataset
    assert "are free" in next(iter(stores.notes.values()))
