import numpy as np
import pytest
import torch

from framework.data.hdf5 import HDF5Store, hdf5_source
from framework.data.lmdb import LMDBStore
from framework.data.source import StoreSource, make_order
from framework.errors import DataError
from framework.transform.random_resized_crop import RandomResizedCrop
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import make_source, make_store, micros, plain

CROP = RandomResizedCrop([4, 4], [0.3, 1.0], [0.75, 1.33], 0.5)


@pytest.mark.parametrize(("name", "store"), [("x.h5", HDF5Store), ("x.lmdb", LMDBStore)])
def test_a_store_without_records_is_refused(name, store):
    path = write_store(name, make_records(0))
    with pytest.raises(DataError, match=r"D109.*a test: has no records"):
        make_order(store(path), make_context())


def test_the_order_knows_the_number_of_records():
    source = make_source("hdf5", 10, batch_size=3)
    assert (source.order.num_records, source.order.num_steps) == (10, 4)
    source.close()


def test_a_training_source_draws_and_another_does_not():
    images = {}
    for training in (True, False):
        source = make_source("folder", 6, transform=CROP, training=training, shuffle=False)
        images[training] = [[batch["image"] for batch, *_ in micros(source, epoch)] for epoch in range(2)]
        source.close()
    assert images[True][0] != images[True][1]
    assert images[False][0] == images[False][1]


def test_a_training_source_shows_its_sample_as_evaluation_sees_it():
    samples = []
    for training in (True, False):
        source = make_source("folder", 6, transform=CROP, training=training)
        samples.append(plain(source.sample(6)))
        source.close()
    assert samples[0] == samples[1]


def test_ranks_together_read_every_record_once():
    store, _ = make_store("hdf5", 10)
    seen = []
    for rank in range(2):
        source = StoreSource(store, make_context(batch_size=4, rank=rank, world_size=2, accumulate=2))
        seen += [index for batch, weight, _ in source.batches(0) if weight for index in batch["index"].tolist()]
    store.close()
    assert sorted(seen) == list(range(10))


def test_two_epochs_run_at_once_do_not_disturb_each_other():
    source = make_source("hdf5", 10, num_workers=2)
    together = list(zip(source.batches(0), source.batches(1), strict=True))
    assert [plain(one.batch) for one, _ in together] == [batch for batch, *_ in micros(source, 0)]
    assert [plain(two.batch) for _, two in together] == [batch for batch, *_ in micros(source, 1)]
    source.close()


def test_a_source_can_be_used_again_after_it_was_closed():
    source = make_source("lmdb", 10, num_workers=2, worker_kind="process")
    first = micros(source)
    source.close()
    assert micros(source) == first
    source.close()


def test_a_source_over_a_missing_file_is_refused_when_it_is_made():
    with pytest.raises(DataError, match=r"D101.*gone\.h5"):
        hdf5_source("gone.h5", context=make_context())


def test_a_batch_does_not_share_memory_with_the_next():
    source = make_source("hdf5", 8, shuffle=False)
    batches = source.batches(0)
    first = next(batches).batch
    copy = {name: tensor.clone() for name, tensor in first.items()}
    for tensor in next(batches).batch.values():
        tensor.zero_()
    assert all(torch.equal(first[name], copy[name]) for name in copy)
    batches.close()


def test_classes_come_with_the_source():
    source = make_source("folder", 6)
    assert list(source.manifest.classes) == ["a", "b", "c"]
    assert np.sum(source.manifest.class_counts) == 6
    source.close()
