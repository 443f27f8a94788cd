import gc
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.contracts.records import KnowsPlaces
from tests.contract.cases import STORES, child_read, make_store, open_case, plain, rows, write_case

ORDERS = [[0, 1, 2], [6, 0, 3], [2, 2, 2], [5], []]


@pytest.fixture(params=STORES)
def case(request):
    """Yield (store, records) of each kind."""
    store, records = make_store(request.param)
    yield store, records
    store.close()


@pytest.mark.parametrize("indices", ORDERS)
def test_records_come_in_the_asked_order_and_repeats_are_allowed(case, indices):
    store, records = case
    assert plain(store.read(torch.tensor(indices, dtype=torch.int64))) == rows(records, indices)


@pytest.mark.parametrize("indices", ORDERS)
def test_values_lie_at_the_places_that_the_store_says(case, indices):
    store, records = case
    if not isinstance(store, KnowsPlaces):
        pytest.skip("knows no places")
    files, starts = store.places(torch.tensor(indices, dtype=torch.int64))
    contents = [Path(path).read_bytes() for path in store.paths]
    assert len(files) == len(indices)
    for name, begins in starts.items():
        for index, file, start in zip(indices, files.tolist(), begins.tolist(), strict=True):
            value = np.asarray(records[name][index])
            assert contents[file][start : start + value.nbytes] == value.tobytes(), name


def test_places_of_records_that_do_not_exist_are_refused(case):
    store, _ = case
    if isinstance(store, KnowsPlaces) and store.places(torch.tensor([0])).starts:
        for index in (-1, 7):
            with pytest.raises(IndexError):
                store.places(torch.tensor([0, index]))


def test_the_manifest_tells_what_is_read(case):
    store, records = case
    manifest, result = store.manifest, store.read(torch.arange(7))
    assert manifest.num_records == 7
    assert list(manifest.fields) == list(result) == list(records)
    for name, field in manifest.fields.items():
        if field.encoding == "raw":
            assert result[name].shape == (7, *field.shape)
            assert result[name].numpy().dtype == np.dtype(field.dtype)


def test_tensors_belong_to_the_caller(case):
    store, records = case
    for values in store.read(torch.tensor([1, 3])).values():
        if isinstance(values, torch.Tensor):
            values.fill_(99)
    assert plain(store.read(torch.tensor([1, 3]))) == rows(records, [1, 3])


def test_tensors_outlive_the_store(case):
    store, records = case
    result = {
        name: values
        for name, values in store.read(torch.tensor([1, 3])).items()
        if isinstance(values, torch.Tensor)
    }
    store.close()
    assert all(plain(result)[name] == rows(records, [1, 3])[name] for name in result)


def test_reading_does_not_change_the_indices(case):
    indices = torch.tensor([4, 1])
    case[0].read(indices)
    assert indices.tolist() == [4, 1]


@pytest.mark.parametrize("opened", [False, True])
def test_it_pickles_before_and_after_opening(case, opened):
    store, records = case
    if opened:
        store.read(torch.tensor([0]))
    copy = pickle.loads(pickle.dumps(store))
    assert plain(copy.read(torch.tensor([6, 0]))) == rows(records, [6, 0])
    copy.close()


def test_it_can_be_read_again_after_it_was_closed(case):
    store, records = case
    for _ in range(3):
        assert plain(store.read(torch.tensor([6, 0]))) == rows(records, [6, 0])
        store.close()
        store.close()
    assert store.manifest.num_records == 7


def test_closing_before_reading_does_nothing(case):
    case[0].close()
    assert case[0].manifest.num_records == 7


def test_closing_gives_back_handles_and_maps(case):
    store, _ = case
    store.read(torch.tensor([0, 1]))
    store.close()
    gc.collect()
    descriptors = [
        os.readlink(name) for name in Path("/proc/self/fd").iterdir() if os.path.islink(name)
    ]
    assert not [name for name in descriptors if name.startswith(store.path)]
    assert store.path not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("kind", STORES)
def test_the_same_path_can_be_opened_twice(kind):
    path, records = write_case(kind, 7)
    first, second = open_case(kind, path), open_case(kind, path)
    assert plain(first.read(torch.tensor([1]))) == plain(second.read(torch.tensor([1])))
    first.close()
    assert plain(second.read(torch.tensor([5, 2]))) == rows(records, [5, 2])
    second.close()


def test_every_record_has_a_name_that_tells_where_it_lies(case):
    store, _ = case
    names = [store.name(index) for index in range(7)]
    assert len(set(names)) == 7
    assert all(name.startswith(store.path) for name in names)


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("kind", STORES)
def test_a_forked_child_reads_the_parents_store(kind, opened):
    _check_child("fork", [(kind, *make_store(kind))], opened)


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_child_started_afresh_reads_the_parents_stores(method):
    _check_child(method, [(kind, *make_store(kind)) for kind in STORES], opened=True)


def _check_child(method, cases, opened):
    """Check that a child reads what is expected, and that the parent still can afterwards."""
    for _, store, _ in cases[: len(cases) * opened]:
        store.read(torch.tensor([1]))
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    stores = [(kind, store) for kind, store, _ in cases]
    child = context.Process(target=child_read, args=(stores, sender))
    child.start()
    sender.close()
    results = receiver.recv()  # EOFError if the child dies
    child.join()
    for (_, store, records), result in zip(cases, results, strict=True):
        assert result == (rows(records, [2, 0, 2]), rows(records, [2, 0, 2]))
        assert plain(store.read(torch.tensor([3]))) == rows(records, [3])
        store.close()
