import os
import pickle
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from framework.data.folder import folder_source
from framework.data.hdf5 import hdf5_source
from framework.data.lmdb import lmdb_source
from framework.data.source import StoreSource
from framework.errors import DataError
from framework.store.hdf5_store import HDF5Store
from framework.store.lmdb_store import LMDBStore
from framework.transform.function import FunctionTransform
from framework.transform.none import NoTransform
from framework.transform.random_resized_crop import RandomResizedCrop
from framework.transform.resize import Resize
from tests.conftest import make_context, make_records, write_store
from tests.contract.cases import jpeg, make_source, make_store, micros, plain, write_folder
from tests.data.pace import SlowStore, SlowTransform, slow_reading

CROP = RandomResizedCrop([4, 4], [0.3, 1.0], [0.75, 1.33], 0.5, 0.0, True)


@pytest.mark.parametrize(("name", "store"), [("x.h5", HDF5Store), ("x.lmdb", LMDBStore)])
def test_a_store_without_records_is_refused(name, store):
    path = write_store(name, make_records(0))
    with pytest.raises(DataError, match=r"D109.*a test: has no records"):
        StoreSource(store(path), make_context())


def test_the_order_knows_the_number_of_records():
    source = make_source("hdf5", 10, batch_size=3)
    assert (source.order.num_records, source.order.num_steps) == (10, 4)
    source.close()


def test_a_training_source_draws_and_another_does_not():
    images = {}
    for training in (True, False):
        source = make_source("folder", 6, transform=CROP, training=training, shuffle=False)
        images[training] = [
            [batch["image"] for batch, *_ in micros(source, epoch)] for epoch in range(2)
        ]
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


def smaller(images, rng):
    return {name: image[:5, :6] for name, image in images.items()}


def source_of_sizes(transform, **options):
    """Return a source of images of several sizes."""
    path = write_folder("in", [jpeg(number, 8 + number, 9) for number in range(4)])
    return folder_source(path, context=make_context(transform=transform, **options))


def test_a_sample_has_the_size_that_a_function_makes_in_training():
    function = FunctionTransform(smaller, NoTransform(), evaluation=False)
    with closing(source_of_sizes(function, training=True)) as source:
        assert source.sample(4)["image"].shape == (4, 3, 5, 6)
    advice = r"D107.*in validation too: transform\.evaluation=true"
    source = source_of_sizes(function, training=False)
    with closing(source), pytest.raises(DataError, match=advice):
        source.sample(4)
    function = FunctionTransform(smaller, NoTransform(), evaluation=True)
    with closing(source_of_sizes(function, training=False)) as source:
        assert source.sample(4)["image"].shape == (4, 3, 5, 6)


@pytest.mark.parametrize("training", [True, False])
def test_a_sample_of_several_sizes_is_one_record_if_batches_are(training):
    with closing(source_of_sizes(NoTransform(), batch_size=1, training=training)) as source:
        assert source.sample(4)["image"].shape == (1, 3, 8, 9)
    source = source_of_sizes(NoTransform(), batch_size=2, training=training)
    with closing(source), pytest.raises(DataError, match=r"D107.*val_batch_size=1"):
        source.sample(4)


def test_ranks_together_read_every_record_once():
    store, _ = make_store("hdf5", 10)
    seen = []
    for rank in range(2):
        source = StoreSource(
            store, make_context(batch_size=4, rank=rank, world_size=2, accumulate=2)
        )
        seen += [
            index
            for batch, weight, _ in source.batches(0)
            if weight
            for index in batch["index"].tolist()
        ]
    store.close()
    assert sorted(seen) == list(range(10))


@pytest.mark.parametrize("kind", ["thread", "process"])
def test_two_epochs_run_at_once_do_not_disturb_each_other(kind):
    source = make_source("hdf5", 10, num_workers=2, worker_kind=kind)
    together = list(zip(source.batches(0), source.batches(1), strict=True))
    assert [plain(first.batch) for first, _ in together] == [
        batch for batch, *_ in micros(source, 0)
    ]
    assert [plain(second.batch) for _, second in together] == [
        batch for batch, *_ in micros(source, 1)
    ]
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


MEMORY = """
import gc
from pathlib import Path
from tests.contract.cases import make_source
from framework.transform.resize import Resize
source = make_source("{kind}", 600, batch_size=32, num_workers={num}, \
transform=Resize([8, 8], True, True))
def pss():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
sizes = []
for epoch in range(12):
    for _ in source.batches(epoch):
        pass
    sizes.append(pss())
source.close()
print((sizes[-1] - sizes[1]) / (len(sizes) - 2))
"""


@pytest.mark.parametrize("num", [pytest.param(0, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("kind", ["hdf5", pytest.param("lmdb", marks=pytest.mark.slow), "folder"])
def test_memory_stays_as_it_is_from_epoch_to_epoch(kind, num):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", MEMORY.format(kind=kind, num=num)]
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, timeout=100, env=environment
    )
    assert float(done.stdout) < 1 << 20  # bytes an epoch


@pytest.mark.parametrize(("num", "kind"), [(0, "thread"), (2, "thread"), (2, "process")])
@pytest.mark.parametrize("suffix", ["h5", "lmdb"])
def test_a_file_replaced_between_epochs_is_reported(suffix, num, kind):
    path = write_store(f"x.{suffix}", make_records(20))
    make = {"h5": hdf5_source, "lmdb": lmdb_source}[suffix]
    source = make(path, context=make_context(num_workers=num, worker_kind=kind))
    micros(source)
    write_store(f"x.{suffix}", make_records(20))
    with pytest.raises(DataError, match=rf"D117.*x\.{suffix}: was replaced or rewritten"):
        micros(source, 1)
    source.close()


@pytest.mark.parametrize(("name", "store"), [("x.h5", HDF5Store), ("x.lmdb", LMDBStore)])
def test_a_file_replaced_before_a_worker_opens_it_is_reported(name, store):
    old = store(write_store(name, make_records(20)))
    assert old.manifest.num_records == 20
    copy = pickle.loads(pickle.dumps(old))
    write_store(name, make_records(20))
    with pytest.raises(DataError, match=rf"D117.*{name}"):
        copy.read(torch.tensor([0]))
    old.close()


@pytest.mark.parametrize(
    ("num", "kind"), [(0, "thread"), (1, "thread"), (3, "thread"), (2, "process")]
)
def test_each_stage_has_its_seconds_whoever_does_it(monkeypatch, num, kind):
    pace = slow_reading(monkeypatch)
    store = SlowStore(make_store("folder", 10)[0], pace)
    transform = SlowTransform(Resize([5, 5], True, True), pace)
    context = make_context(
        4, num, kind, transform, start_method="fork" if kind == "process" else None
    )
    source = StoreSource(store, context)
    source.sample(5)  # is not counted
    assert len(micros(source)) == 3
    seconds = {"read": 3.0, "decode": 10 * 102.0, "transform": 3 * 10.0 + 10 * 1000.0}
    assert (source.stages(), source.stages()) == (seconds, {})
    source.close()
