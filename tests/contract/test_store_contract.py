import gc
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.contract.cases import STORES, child_read, make_store, open_case, plain, rows

ORDERS = [[0, 1, 2], [6, 0, 3], [2, 2, 2], [5], []]


@pytest.fixture(params=STORES)
def case(request):
    """Yield (kind, store, records) of each kind."""
    store, records = make_store(request.param)
    yield request.param, store, records
    store.close()


def read(store, indices):
    return plain(store.read(torch.tensor(indices, dtype=torch.int64)))


def test_records_come_in_the_asked_order_and_repeats_are_allowed(case):
    _, store, records = case
    for indices in ORDERS:
        assert read(store, indices) == rows(records, indices)
    indices = torch.tensor([4, 1])
    store.read(indices)
    assert indices.tolist() == [4, 1]


def test_values_lie_at_the_places_that_the_store_says(case):
    _, store, records = case
    if not store.paths:
        pytest.skip("knows no places")
    contents = [Path(path).read_bytes() for path in store.paths]
    for indices in ORDERS:
        files, starts = store.places(torch.tensor(indices, dtype=torch.int64))
        assert len(files) == len(indices)
        for name, begins in starts.items():
            for index, file, start in zip(indices, files.tolist(), begins.tolist(), strict=True):
                value = np.asarray(records[name][index])
                assert contents[file][start : start + value.nbytes] == value.tobytes(), name
    if store.places(torch.tensor([0])).starts:
        for index in (-1, 7):
            with pytest.raises(IndexError):
                store.places(torch.tensor([0, index]))


def test_the_manifest_tells_what_is_read_and_every_record_has_a_name(case):
    _, store, records = case
    manifest, result = store.manifest, store.read(torch.arange(7))
    assert manifest.num_records == 7
    assert list(manifest.fields) == list(result) == list(records)
    for name, field in manifest.fields.items():
        if field.encoding == "raw":
            assert result[name].shape == (7, *field.shape)
            assert result[name].numpy().dtype == np.dtype(field.dtype)
    names = [store.name(index) for index in range(7)]
    assert len(set(names)) == 7
    assert all(name.startswith(store.path) for name in names)


def test_tensors_belong_to_the_caller_and_outlive_the_store(case):
    _, store, records = case
    result = store.read(torch.tensor([1, 3]))
    kept = {name: values for name, values in result.items() if isinstance(values, torch.Tensor)}
    for values in store.read(torch.tensor([1, 3])).values():
        if isinstance(values, torch.Tensor):
            values.fill_(99)
    assert read(store, [1, 3]) == rows(records, [1, 3])
    store.close()
    assert all(plain(kept)[name] == rows(records, [1, 3])[name] for name in kept)


def test_a_store_pickles_before_and_after_opening(case):
    _, store, records = case
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(store))
        assert read(copy, [6, 0]) == rows(records, [6, 0])
        copy.close()
        read(store, [0])


def test_a_closed_store_gives_back_handles_and_maps_and_can_be_read_again(case):
    _, store, records = case
    store.close()
    for _ in range(3):
        assert read(store, [6, 0]) == rows(records, [6, 0])
        assert store.manifest.num_records == 7
        store.close()
        store.close()
    gc.collect()
    links = [name for name in Path("/proc/self/fd").iterdir() if os.path.islink(name)]
    assert not [name for name in map(os.readlink, links) if name.startswith(store.path)]
    assert store.path not in Path("/proc/self/maps").read_text()


def test_the_same_path_can_be_opened_twice(case):
    kind, first, records = case
    second = open_case(kind, first.path)
    assert read(first, [1]) == read(second, [1])
    first.close()
    assert read(second, [5, 2]) == rows(records, [5, 2])
    second.close()


@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)]
)
def test_a_child_reads_the_parents_stores_and_the_parent_still_can(method):
    cases = [(kind, *make_store(kind)) for kind in STORES]
    for _, store, _ in cases[::2]:  # the others are opened by the child
        read(store, [1])
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
        assert read(store, [3]) == rows(records, [3])
        store.close()
